"""Every sentence a reader of a report sees, in English and Chinese side by side, so that neither can be forgotten."""

TEXTS: dict[str, tuple[str, str]] = {
    # Words
    "goal_met": ("met", "达标"),
    "goal_missed": ("missed", "未达标"),
    "goal_undecided": ("undecided", "尚无定论"),
    "goal_not_comparable": ("not comparable", "不可比较"),
    "frozen_verified": ("frozen: verified", "冻结：已核验"),
    "frozen_nothing_frozen": ("nothing frozen", "无冻结参数"),
    "frozen_not_verified": ("frozen: not verified", "冻结：未核验"),
    "speed_no_difference": ("no difference", "无差异"),
    "speed_faster": ("faster", "更快"),
    "speed_slower": ("slower", "更慢"),
    "state_queued": ("queued", "排队中"),
    "state_running": ("running", "运行中"),
    "state_interrupted": ("interrupted", "已中断"),
    "state_failed": ("failed", "失败"),
    "state_finished": ("finished", "已完成"),
    "state_dead": ("dead", "进程已消失"),
    "metric_perplexity": ("perplexity", "困惑度"),
    "metric_accuracy": ("accuracy", "准确率"),
    "metric_f1": ("F1", "F1"),
    "unit_percent": ("{value} %", "{value} %"),
    "unit_points": ("{value} points", "{value} 个百分点"),
    "at_step": ("step {step}", "第 {step} 步"),
    "not_interleaved": ("not interleaved", "非交错测量"),
    # Columns
    "column_method": ("method", "方法"),
    "column_dataset": ("dataset", "数据集"),
    "column_model": ("model", "模型"),
    "column_seeds": ("seeds", "种子数"),
    "column_metric": ("metric", "指标"),
    "column_score": ("result", "结果"),
    "column_gap": ("gap to baseline", "与基线之差"),
    "column_gap_against": ("against", "对照基线"),
    "column_gap_plain": ("gap to the plain baseline", "与普通基线之差"),
    "column_goal_1": ("at most 1\u00a0%", "是否 ≤1\u00a0%"),
    "column_goal": ("goal ≤5\u00a0%", "目标 ≤5\u00a0%"),
    "column_bits_per_byte": ("bits per byte", "每字节比特数"),
    "column_total_parameters": ("parameters", "参数总数"),
    "column_frozen_parameters": ("frozen", "冻结参数"),
    "column_trainable_parameters": ("trainable", "可训练参数"),
    "column_step_time": ("step time", "单步耗时比"),
    "column_frozen_check": ("audit", "核验"),
    "column_gap_seeds": ("paired seeds", "配对种子数"),
    "column_gap_bootstrap": ("bootstrap interval", "自助法区间"),
    "column_optimizer_bytes": ("optimizer state", "优化器状态"),
    "column_checkpoint_bytes": ("checkpoint", "检查点大小"),
    "column_peak_memory_bytes": ("peak memory", "峰值内存"),
    "column_step_time_predicted": ("predicted by FLOPs", "按 FLOPs 预测"),
    "column_median_step_seconds": ("median step, s", "单步中位耗时（秒）"),
    "column_training_seconds": ("training, s", "训练用时（秒）"),
    "column_validation_seconds": ("validation, s", "验证用时（秒）"),
    "column_run": ("run", "运行"),
    "column_seed": ("seed", "种子"),
    "column_step": ("steps", "已训练步数"),
    "column_max_steps": ("of", "计划步数"),
    "column_state": ("state", "状态"),
    "column_best_rate": ("best", "最佳"),
    "column_rate_shown": ("used", "采用"),
    "column_path": ("path", "路径"),
    "column_reason": ("reason", "原因"),
    # Figures
    "axis_value": ("validation {metric}{unit}", "验证{metric}{unit}"),
    "axis_steps": ("training steps", "训练步数"),
    "axis_tokens_millions": ("training tokens, millions", "训练词元数（百万）"),
    "axis_tokens_thousands": ("training tokens, thousands", "训练词元数（千）"),
    "axis_hours": ("training time, hours", "训练用时（小时）"),
    "axis_minutes": ("training time, minutes", "训练用时（分钟）"),
    "axis_seconds": ("training time, seconds", "训练用时（秒）"),
    "axis_gap": ("gap to the baseline, %", "与基线之差（%）"),
    "axis_gap_points": ("gap to the baseline, points", "与基线之差（百分点）"),
    "axis_step_time": ("step time ÷ the baseline's", "单步耗时 ÷ 基线单步耗时"),
    "axis_trainable": ("parameters that train, millions", "可训练参数（百万）"),
    "floor": ("the text's own entropy: {value}", "语料自身的熵下限：{value}"),
    "goal_line": ("goal: 5 %", "目标：5 %"),
    "title_curves": (
        "{metric} after {steps} steps: {low} to {high}",
        "训练 {steps} 步后的验证{metric}：{low} 至 {high}",
    ),
    "title_curve": ("{metric} after {steps} steps: {only}", "训练 {steps} 步后的验证{metric}：{only}"),
    "title_time": ("Validation {metric} by training time", "验证{metric}随训练用时的变化"),
    "title_gaps": (
        "Gaps run from {low} to {high} {unit}; 5 % goal: {met} met, {missed} missed, {undecided} undecided",
        "与基线之差为 {low} 至 {high} {unit}；5 % 目标：{met} 个达标，{missed} 个未达标，{undecided} 个尚无定论",
    ),
    "title_gaps_some_frozen": (
        "Gaps run from {low} to {high} {unit}; 5 % goal of arms that freeze: {met} met, {missed} missed, "
        "{undecided} undecided",
        "与基线之差为 {low} 至 {high} {unit}；冻结方法的 5 % 目标：{met} 个达标，{missed} 个未达标，"
        "{undecided} 个尚无定论",
    ),
    "title_gap": (
        "{arm} is {low} {unit} from the baseline; 5 % goal: {verdict}",
        "{arm} 与基线相差 {low} {unit}；5 % 目标：{verdict}",
    ),
    "title_step_times": ("Step times are {low} to {high} of the baseline's", "单步耗时为基线的 {low} 至 {high} 倍"),
    "title_step_time": ("A step of {arm} takes {low} of the baseline's time", "{arm} 的单步耗时为基线的 {low} 倍"),
    "title_pareto_step_time": (
        "By point estimate, nothing is both faster and better than: {arms}",
        "按点估计，没有方法比以下方法又快又好：{arms}",
    ),
    "title_pareto_trainable": (
        "By point estimate, nothing trains fewer parameters and is better than: {arms}",
        "按点估计，没有方法比以下方法可训练参数更少且更好：{arms}",
    ),
    "caption_pareto": (
        "Means over seeds; arms whose settings differ from the baseline's are left out. Those on the line have no "
        "rival that is both cheaper and better. Horizontal bars: 95 % intervals of the step time. The dashed line is "
        "5 % from the plain baseline; whether the goal is met is decided by the paired gaps, not here.",
        "各种子的均值；设置与基线不同的方法未画出。线上的方法没有既更省又更好的对手。横线为单步耗时的 95 % 区间。"
        "虚线为与普通基线相差 5 % 处；是否达标由配对差距判定，不由本图判定。",
    ),
    "caption_curves": ("Lines are means over seeds, bands their range.", "曲线为各种子的均值，色带为其范围。"),
    "caption_lower": ("Below: the gap to the baseline, paired by seed.", "下图为按种子配对后与基线之差。"),
    "caption_above": ("The first steps lie above the frame.", "最初若干步的数值超出图框上沿。"),
    "caption_share": (
        "On the way, a fixed {share} % of the validation set was used; the title and the summary give the whole set, "
        "so the ends of the lines differ a little from them.",
        "训练途中使用固定的 {share} % 验证集；标题和总览使用完整验证集，因此与曲线末端略有出入。",
    ),
    "caption_shown": (
        "Drawn are {drawn} of {count} arms, the baseline and the best of the others; the tables have all.",
        "{count} 个方法中只画出 {drawn} 个，即基线和其余方法中最好的；全部结果见表格。",
    ),
    "caption_time": (
        "Time spent in training steps, without validation, as the machine happened to run, whatever else it had to do: "
        "differences in time are no evidence here.",
        "仅计训练步耗时，不含验证，无论机器当时还在做什么；因此这里的时间差异不能作为证据。",
    ),
    "caption_gaps": (
        "Markers: mean over paired seeds; small dots: single seeds; thin lines: 95 % interval (paired t); "
        "thick bands: bootstrap. Arrows: the interval goes on. The goal is judged by the paired t interval of the "
        "ratio.",
        "标记为配对种子的均值，小点为单个种子；细线为 95 % 置信区间（配对 t）；粗带为自助法区间。"
        "箭头表示区间延伸到图外。是否达标按比值的配对 t 区间判定。",
    ),
    "caption_step_times": (
        "Filled markers with 95 % intervals: arms measured interleaved in one process; an interval that covers 1 "
        "is no difference. Hollow markers: ratio of medians of separate runs.",
        "实心标记及 95 % 区间：同一进程内交错测量；区间包含 1 即无差异。空心标记：各自运行的中位耗时之比。",
    ),
    "caption_predicted": ("Crosses: predicted from FLOPs.", "叉号：按 FLOPs 预测的值。"),
    "figure_many_runs": (
        "Runs ({where}): those of all {count} arms ({ends}); the table of runs names them.",
        "运行（{where}）：全部 {count} 个方法的运行（{ends}），名称见运行列表。",
    ),
    "figure_runs": ("Runs ({where}): {runs}.", "运行（{where}）：{runs}。"),
    # Tables
    "table_summary": ("Summary", "结果总览"),
    "table_gaps": ("Gaps to the baseline", "与基线之差"),
    "table_memory": ("Parameters and memory", "参数与内存"),
    "table_time": ("Time", "时间"),
    "table_sweep": ("Learning rates", "学习率"),
    "table_steps": ("Arms at equal steps", "相同步数下的比较"),
    "table_runs": ("Runs", "运行列表"),
    "table_skipped": ("Skipped", "已跳过"),
    # The report
    "title": ("What freezing costs: {datasets}", "冻结的代价：{datasets}"),
    "h_summary": ("In short", "摘要"),
    "h_caveats": ("Read with care", "阅读须知"),
    "h_methods": ("The methods", "方法说明"),
    "h_figures": ("Figures", "图"),
    "h_details": ("Details", "详细数据"),
    "h_samples": ("What the models write", "模型生成的文本"),
    "h_environment": ("Environment", "运行环境"),
    "h_configs": ("Settings", "完整配置"),
    "sum_study": ("Trained on {dataset} ({model}): {arms}.", "在 {dataset}（{model}）上训练的方法：{arms}。"),
    "sum_baseline": (
        "The {metric} of {arm} on the whole validation set is {score} (seeds: {seeds}).",
        "{arm} 在完整验证集上的{metric}为 {score}（种子数：{seeds}）。",
    ),
    "sum_floor": (
        "The text itself has a perplexity of {floor}, which no model can beat; {arm} is {percent} % above it.",
        "语料自身的困惑度为 {floor}，任何模型都无法更低；{arm} 比它高 {percent} %。",
    ),
    "sum_goal": ("The goal is to be at most 5 % worse than the baseline:", "目标是最多比基线差 5 %："),
    "sum_gap": ("{arm} is {gap} {direction}{interval}, goal {goal}", "{arm} {direction} {gap}{interval}，{goal}"),
    "sum_equal": ("{arm} is as good{interval}, goal {goal}", "{arm} 与基线相当{interval}，{goal}"),
    "sum_incomparable": (
        "{arm} is {gap} {direction}{interval}, but was trained otherwise and is not comparable",
        "{arm} {direction} {gap}{interval}，但训练设置不同，不可比较",
    ),
    "sum_many_not_comparable": ("not comparable, {count}: {arms}", "{count} 个不可比较：{arms}"),
    "sum_count": ("{count} arms", "共 {count} 个"),
    "sum_many_met": ("met by {count}: {arms}", "{count} 个达标：{arms}"),
    "sum_many_missed": ("missed by {count}: {arms}", "{count} 个未达标：{arms}"),
    "sum_many_undecided": ("undecided for {count}: {arms}", "{count} 个尚无定论：{arms}"),
    "sum_close": (
        "At most 1 % worse, by the whole interval: {arms}.",
        "整个区间都表明最多差 1 %：{arms}。",
    ),
    "sum_controls": ("Arms that freeze nothing: {arms}.", "不冻结任何参数的方法：{arms}。"),
    "sum_against": (" against {baseline}", "（相对 {baseline}）"),
    "sum_judged": ("{what} ({verdict})", "{what}（{verdict}）"),
    "sum_times": ("{verdict} ({count}): {arms}", "{verdict}（{count}）：{arms}"),
    "sum_interval": (" (95 % interval {low} to {high})", "（95 % 置信区间 {low} 至 {high}）"),
    "worse": ("worse", "差"),
    "better": ("better", "好"),
    "sum_time": (
        "Step time relative to the baseline, measured interleaved: {times}.",
        "与基线交错测量的单步耗时比：{times}。",
    ),
    "sum_frozen": (
        "In every run with frozen weights these were found unchanged, bit for bit, at the end.",
        "所有含冻结权重的运行在结束时均经核验，冻结权重逐位未变。",
    ),
    "foot_summary": (
        "± is the sample standard deviation over seeds. The gap is paired by seed; brackets are its 95 % interval "
        "(paired t), and the goal is met or missed only if the whole interval says so. Step time is a multiple of "
        "the baseline's. Learned adapters are compared with a baseline that has them, too: the table of gaps names it.",
        "± 为各种子间的样本标准差。差距按种子配对计算，方括号内为 95 % 置信区间（配对 t）；"
        "只有整个区间都支持时才判定达标或未达标。单步耗时以基线为 1。带可学习部件者与同样的基线比较，见差距表。",
    ),
    "foot_gaps": (
        "Best first. An arm with learned adapters is compared with the baseline that has the same ones, where there is "
        "one; the plain baseline has none. Intervals are not corrected for the number of arms.",
        "按差距由好到差排列。带可学习部件的方法与带相同部件的基线比较（若有）；普通基线不带任何部件。"
        "区间未按方法数量作多重比较校正。",
    ),
    "foot_memory": (
        "Checkpoint: float32 weights and two AdamW moments of what trains, 4 × (total + 2 × trainable) bytes. "
        "Peak memory is that of the whole process.",
        "检查点：float32 权重加可训练参数的两个 AdamW 动量，共 4 ×（总数 + 2 × 可训练数）字节。"
        "峰值内存为整个进程的峰值。",
    ),
    "foot_sweep": (
        "The arms were given the same learning rates. Used is the rate with most seeds, and among equals the best one; "
        "where the runs are those of this table, it was chosen on the validation set that it is judged by, for all "
        "arms alike. Scores of a sweep that came before these runs (sweep.json) are from shorter runs on other rows.",
        "各方法试用相同的学习率。采用种子最多的学习率，种子数相同时取最佳者；"
        "若运行即为本表中的运行，则选择与评判使用同一验证集，对各方法一视同仁。"
        "若学习率在这些运行之前已选定（sweep.json），其分数来自其他数据行上的较短运行。",
    ),
    "foot_steps": (
        "Over the part of the validation set that was used on the way, and over all seeds that an arm has.",
        "基于训练途中使用的那部分验证集，并对各方法已有的全部种子取平均。",
    ),
    "sum_scores": ("On the whole validation set, {metric}: {scores}.", "完整验证集上的{metric}：{scores}。"),
    "foot_environments": (
        "The runs were made in {count} different environments.",
        "这些运行来自 {count} 个不同的环境。",
    ),
    "many_arms": ("{count} arms", "{count} 个方法"),
    "seeds_of": ("seeds {seeds}", "种子 {seeds}"),
    "made_by": (
        "Made by oelm {version} from run folders and what lies beside them.",
        "由 oelm {version} 根据运行目录及其旁的文件生成。",
    ),
    "english_in_print": (
        "No font with Chinese characters was found on this machine, so PDF and PNG are in English.",
        "本机未找到中文字体，因此 PDF 与 PNG 使用英文。",
    ),
    # Notes
    "skip_missing": ("it does not exist", "路径不存在"),
    "skip_no_run": ("there is no run folder in it (no config.yaml)", "其中没有运行目录（找不到 config.yaml）"),
    "skip_unreadable": ("{error}", "{error}"),
    "skip_repeated": ("same method, settings and seed as {path}", "方法、设置和种子与 {path} 完全相同"),
    "different_settings": ("{key} is {value} vs {other}", "{key} 为 {value}，而 {baseline} 为 {other}"),
    "note_no_baseline": (
        "There is no finished baseline on {dataset} ({model}), so no gap can be given; "
        "train one with --method baseline and the same settings.",
        "{dataset}（{model}）上没有已完成的基线运行，无法计算差距；请用相同设置加 --method baseline 训练一个基线。",
    ),
    "note_not_comparable": (
        "* {arm} is not comparable: {differences}. Its gap is not due to the method alone.",
        "* {arm} 不可直接比较：{differences}。其差距不能只归因于方法本身。",
    ),
    "note_unequal": (
        "Compared with a baseline without their adapters or their start, because none that has them was trained "
        "alike, on {dataset} ({model}): {arms}.",
        "{dataset}（{model}）上，以下方法只能与不带相同可学习部件（或相同起点）的基线比较，因为没有同样训练的对应基线：{arms}。",
    ),
    "note_no_curve": (
        "Without a record of the way (metrics.jsonl), so in no curve and not in the table of equal steps: {runs}.",
        "缺少训练过程记录（metrics.jsonl），因此未计入曲线和相同步数的比较：{runs}。",
    ),
    "note_rate": (
        "{arm} did best with learning rate {best}; its figures are from {shown} ({dataset}, {model}).",
        "{arm} 在学习率 {best} 下最佳，而其数据来自 {shown}（{dataset}，{model}）。",
    ),
    "note_rate_edge": (
        "{arm} did best at the edge of the learning rates it was given, {best}: a better one may lie beyond "
        "({dataset}, {model}).",
        "{arm} 在所试学习率的边缘 {best} 处最佳：更优值可能在范围之外（{dataset}，{model}）。",
    ),
    "note_split": (
        "What is called validation here is the split {split} of {dataset} ({model}).",
        "此处所称的验证集是 {dataset} 的 {split} 划分（{model}）。",
    ),
    "note_past_best": (
        "Validation loss was lower on the way than at the end, by up to {nats} nats, on {dataset} ({model}): {arms}. "
        "All arms are judged at their last step.",
        "{dataset}（{model}）上训练途中的验证损失曾低于结束时，最多低 {nats} nat：{arms}。所有方法均按最后一步评判。",
    ),
    "note_no_common_seed": (
        "{arm} and {baseline} share no seed, so they cannot be paired.",
        "{arm} 与 {baseline} 没有相同的种子，无法配对比较。",
    ),
    "note_one_seed": (
        "One seed, or one in common with the baseline, on {dataset} ({model}): {arms}. Without a second there is no "
        "interval, and the goal stays undecided.",
        "{dataset}（{model}）上只有一个种子、或与基线只有一个共同种子的方法：{arms}。缺少第二个就没有置信区间，"
        "是否达标尚无定论。",
    ),
    "note_not_interleaved": (
        'Step-time ratios marked "not interleaved" compare runs made at different times; only an interleaved '
        "measurement can tell small differences from noise.",
        "标有“非交错测量”的单步耗时比来自不同时间的运行；只有交错测量才能把微小差异与噪声区分开。",
    ),
    "note_incomplete": (
        "{run} is not finished ({state} at step {step} of {max_steps}) and not averaged.",
        "{run} 尚未完成（{state}，第 {step} 步，共 {max_steps} 步），未计入平均。",
    ),
    "note_many_incomplete": (
        "{count} runs are not finished and not averaged; the table of runs names them.",
        "有 {count} 个运行尚未完成，未计入平均；见运行列表。",
    ),
    "note_skipped": ("{path} was skipped: {reason}", "已跳过 {path}：{reason}"),
}
"""key -> (English, Chinese)"""
