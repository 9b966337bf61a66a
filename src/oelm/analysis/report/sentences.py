"""Every sentence a reader of a report sees, in English and, where someone has written it, in Chinese."""

TEXTS: dict[str, tuple[str, str] | tuple[str]] = {
    # Words
    "goal_met": ("met", "达标"),
    "goal_missed": ("missed", "未达标"),
    "goal_undecided": ("undecided", "尚无定论"),
    "goal_not_comparable": ("not comparable", "不可比较"),
    "frozen_verified": ("frozen: verified", "冻结：已核验"),
    "frozen_nothing_frozen": ("nothing frozen", "无冻结参数"),
    "frozen_no_weights": ("no weights", "无权重"),
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
    "column_score": ("result", "结果"),
    "column_score_of": ("{metric} ± sd (seeds)", "{metric} ± 标准差（种子数）"),
    "column_plain": ("gap to plain baseline", "与普通基线之差"),
    "column_equal": ("gap to equally equipped baseline", "与同等配置基线之差"),
    "column_verdict": ("at most 5\u00a0% worse", "是否最多差 5\u00a0%"),
    "column_close": ("at most 1\u00a0% worse", "是否最多差 1\u00a0%"),
    "column_flops_ratio": ("FLOPs ÷ baseline's", "FLOPs ÷ 基线"),
    "column_block_flops_ratio": ("block FLOPs ÷ baseline's", "各层 FLOPs ÷ 基线"),
    "column_correlation": ("correlation of seeds", "种子间相关系数"),
    "column_unpaired": ("interval if not paired", "不配对时的区间"),
    "column_gap_steps": ("gap at equal steps", "步数相同时之差"),
    "column_gap_flops": ("at equal FLOPs", "FLOPs 相同时之差"),
    "column_gap_time": ("at equal time", "用时相同时之差"),
    "column_speedup_flops": ("effective speed-up, FLOPs", "等效加速（FLOPs）"),
    "column_speedup_time": ("effective speed-up, time", "等效加速（时间）"),
    "column_best_trained": ("best trained arm of equal FLOPs", "FLOPs 相同的最佳可训练方法"),
    "column_step_seconds": ("step, s", "单步（秒）"),
    "column_frozen_check": ("frozen weights", "冻结核验"),
    "is_baseline": ("baseline", "基线"),
    "against": ("to {baseline}", "相对 {baseline}"),
    "equal_is_plain": ("the plain one", "即普通基线"),
    "equal_missing": ("none trained", "未训练"),
    "more_seeds": ("(seeds missing: about {count})", "（约需再加 {count} 个种子）"),
    "second_seed": ("(one seed)", "（仅一个种子）"),
    "nobody": ("none", "无"),
    "column_total_parameters": ("parameters", "参数总数"),
    "column_frozen_parameters": ("frozen", "冻结参数"),
    "column_step_time": ("step time", "单步耗时比"),
    "column_gap_seeds": ("paired seeds", "配对种子数"),
    "column_optimizer_bytes": ("optimizer state", "优化器状态"),
    "column_checkpoint_bytes": ("checkpoint", "检查点大小"),
    "column_peak_memory_bytes": ("peak memory", "峰值内存"),
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
    "axis_gap": ("gap to the plain baseline, %", "与普通基线之差（%）"),
    "axis_gap_points": ("gap to the plain baseline, points", "与普通基线之差（百分点）"),
    "goal_line_points": ("5 % of the baseline's score: {points} points", "基线得分的 5 %：{points} 个百分点"),
    "axis_step_time": ("step time ÷ the baseline's", "单步耗时 ÷ 基线单步耗时"),
    "axis_trainable": ("parameters that train, millions", "可训练参数（百万）"),
    "floor": ("the text's own entropy: {value}", "语料自身的熵下限：{value}"),
    "goal_line": ("5 % worse", "差 5 %"),
    "title_curves": (
        "{metric} after {steps} steps: {low} to {high}",
        "训练 {steps} 步后的验证{metric}：{low} 至 {high}",
    ),
    "title_curve": ("{metric} after {steps} steps: {only}", "训练 {steps} 步后的验证{metric}：{only}"),
    "title_gaps": (
        "Gap to the plain baseline; at most 5 % worse: {met} yes, {missed} no, {undecided} undecided",
        "与普通基线之差；最多差 5 %：{met} 个是，{missed} 个否，{undecided} 个尚无定论",
    ),
    "caption_gaps": (
        "Markers: mean over paired seeds; small dots: single seeds; lines: 95 % interval, paired by seed. Arrows: the "
        "interval goes on. The verdict at the right also counts the equally equipped baseline.",
        "标记为配对种子的均值，小点为单个种子；线为按种子配对的 95 % 置信区间，箭头表示延伸到图外。"
        "右侧的结论也计入同等配置基线。",
    ),
    "caption_fewer": (
        "Of {count} arms the {drawn} best are drawn.",
        "{count} 个方法中只画出最好的 {drawn} 个。",
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
    "caption_step_times": (
        "Filled markers with 95 % intervals: arms measured interleaved in one process; an interval that covers 1 "
        "is no difference. Hollow markers: ratio of medians of separate runs.",
        "实心标记及 95 % 区间：同一进程内交错测量；区间包含 1 即无差异。空心标记：各自运行的中位耗时之比。",
    ),
    "caption_predicted": ("Crosses: predicted from FLOPs.", "叉号：按 FLOPs 预测的值。"),
    # Tables
    "table_summary": ("Summary", "结果总览"),
    "table_yardstick": ("Equal compute", "算力相同时的比较"),
    "table_gaps": ("Gaps to the baselines", "与基线之差"),
    "table_memory": ("Parameters and memory", "参数与内存"),
    "table_time": ("Time", "时间"),
    "table_sweep": ("Learning rates", "学习率"),
    "table_steps": ("Arms at equal steps", "相同步数下的比较"),
    "table_runs": ("Runs", "运行列表"),
    "table_skipped": ("Skipped", "已跳过"),
    # The report
    "title": ("What freezing costs: {datasets}", "冻结的代价：{datasets}"),
    "line_first_look": (
        "First look only: {epochs} epochs, still falling{where}.",
        "仅供初步参考：只训练了 {epochs} 轮，损失仍在下降{where}。",
    ),
    "line_best": (
        "Nearest to the plain baseline: {arms} (intervals corrected for choosing 1 of {count}).",
        "最接近普通基线：{arms}（区间已按 {count} 选一作校正）。",
    ),
    "line_only": ("Against the plain baseline: {arms}.", "与普通基线相比：{arms}。"),
    "line_met": ("At most 5 % worse, surely: {arms}.", "确定最多差 5 %：{arms}。"),
    "line_missed": ("More than 5 % worse, surely: {arms}.", "确定差 5 % 以上：{arms}。"),
    "line_undecided": ("Undecided: {arms}{more}.", "尚无定论：{arms}{more}。"),
    "line_not_comparable": ("Not comparable, trained otherwise: {arms}.", "训练设置不同，不可比较：{arms}。"),
    "answer_cost_missed": (
        "Freezing costs something: {arm} is {gap} against {against} ({seeds} seeds).",
        "冻结是有代价的：{arm} 相对 {against} 为 {gap}（{seeds} 个种子）。",
    ),
    "answer_cost_met": (
        "Freezing costs nothing here: {arm} is {gap} against {against} ({seeds} seeds).",
        "这里冻结没有代价：{arm} 相对 {against} 为 {gap}（{seeds} 个种子）。",
    ),
    "answer_cost_undecided": (
        "Whether freezing costs anything is undecided: {arm} is {gap} against {against} ({seeds} seeds).",
        "冻结是否有代价尚无定论：{arm} 相对 {against} 为 {gap}（{seeds} 个种子）。",
    ),
    "answer_orthogonality_missed": (
        "Orthogonality is not why: {arm} is {gap} against {against}, frozen random projections of the same scale; "
        "the {advantage} % that the original study reports are ruled out ({seeds} seeds).",
        "原因不在正交性：{arm} 相对同尺度的冻结随机投影 {against} 为 {gap}；"
        "原研究所说的 {advantage} % 优势可以排除（{seeds} 个种子）。",
    ),
    "answer_orthogonality_met": (
        "Orthogonality helps by at least {advantage} %: {arm} is {gap} against {against}, frozen random projections of "
        "the same scale ({seeds} seeds).",
        "正交性至少带来 {advantage} % 的好处：{arm} 相对同尺度的冻结随机投影 {against} 为 {gap}（{seeds} 个种子）。",
    ),
    "answer_orthogonality_undecided": (
        "Whether orthogonality helps is undecided: {arm} is {gap} against {against}, frozen random projections of the "
        "same scale, and the {advantage} % that the original study reports are not ruled out ({seeds} seeds).",
        "正交性是否有帮助尚无定论：{arm} 相对同尺度的冻结随机投影 {against} 为 {gap}，"
        "原研究所说的 {advantage} % 优势尚不能排除（{seeds} 个种子）。",
    ),
    "answer_recovery_met": (
        "A cheap method wins it back: {arm} is {gap} against {against} ({seeds} seeds).",
        "廉价的方法能补回损失：{arm} 相对 {against} 为 {gap}（{seeds} 个种子）。",
    ),
    "answer_recovery_missed": (
        "The cheap method does not win it back: {arm} is {gap} against {against} ({seeds} seeds).",
        "廉价的方法补不回损失：{arm} 相对 {against} 为 {gap}（{seeds} 个种子）。",
    ),
    "answer_recovery_undecided": (
        "Whether the cheap method wins it back is undecided: {arm} is {gap} against {against} ({seeds} seeds).",
        "廉价的方法能否补回损失尚无定论：{arm} 相对 {against} 为 {gap}（{seeds} 个种子）。",
    ),
    "answer_rest": ("To {against} it is {gap}.", "相对 {against} 为 {gap}。"),
    "answer_more_seeds": ("About {count} more seeds would decide.", "约需再加 {count} 个种子才能定论。"),
    "line_more_seeds": ("; seeds missing: up to about {count}", "；约需再加至多 {count} 个种子"),
    "line_counts": (
        "At most 5 % worse: {met} surely, {missed} surely not, {undecided} undecided.",
        "是否最多差 5 %：{met} 个确定是，{missed} 个确定不是，{undecided} 个尚无定论。",
    ),
    "line_times": (
        "Steps surely faster than the baseline's: {faster}; surely slower: {slower} of {count} measured.",
        "单步确定快于基线：{faster}；确定更慢：{count} 个中有 {slower} 个。",
    ),
    "line_scores": ("There is nothing to judge: {scores}.", "没有可评判的方法：{scores}。"),
    "data_tokens": ("{tokens} tokens seen", "训练 {tokens} 词元"),
    "data_there": ("{tokens} tokens of text", "文本共 {tokens} 词元"),
    "data_epochs": ("{epochs} epochs", "{epochs} 轮"),
    "data_share": ("{share} % of the corpus", "占语料的 {share} %"),
    "data_floor": ("perplexity of the text itself {value}", "文本自身的困惑度 {value}"),
    "data_falling": ("still falling: first look only", "损失仍在下降：仅供初步参考"),
    "h_caveats": ("Read with care", "阅读须知"),
    "h_methods": ("The methods", "方法说明"),
    "h_samples": ("What the models write", "模型生成的文本"),
    "h_environment": ("Environment", "运行环境"),
    "h_configs": ("Settings", "完整配置"),
    "foot_summary": (
        "A gap above 0 is a loss in perplexity, below 0 in accuracy. Brackets: 95 % interval, paired by seed. The "
        "verdict asks whether an arm is at most 5 % worse (of the baseline's score) than each baseline in its row, "
        "and is given only if the whole interval says so. Step time and FLOPs of a step are multiples of the plain "
        "baseline's.",
        "困惑度之差大于 0、准确率之差小于 0 表示变差。方括号内为按种子配对的 95 % 区间。"
        "是否最多差 5 %（以基线得分为准）须对该行的每个基线都成立，且只有整个区间都支持时才下结论。"
        "单步耗时与 FLOPs 以普通基线为 1。",
    ),
    "foot_gaps": (
        "Best first. Intervals are always paired by seed: that is right whether or not the seeds of two arms move "
        "together. The correlation says whether pairing helped (above 0) or not; the interval without pairing is shown "
        "and decides nothing. An equally equipped baseline has the same adapters, start and architecture, and trains "
        "everything.",
        "按差距由好到差排列。区间始终按种子配对：无论两者是否同向变化都成立。相关系数大于 0 表示配对有益；"
        "不配对的区间仅供参考。同等配置基线具有相同的可学习部件、起点与结构，且全部参与训练。",
    ),
    "foot_yardstick": (
        "Plain baselines of several lengths, each with a full schedule, give each seed a power law of loss over steps. "
        "Effective speed-up: the FLOPs (or measured time) that the baseline would need to reach an arm's loss, as a "
        "multiple of the arm's own; above 1 the arm pays. Gaps at equal FLOPs and time are to the baseline of that "
        "law. The last column is the best arm that trains everything for at most as many FLOPs, with an interval "
        "corrected for having been chosen (Šidák). † beyond the lengths that were trained.",
        "多种长度的普通基线（各自完整调度）为每个种子给出损失随步数的幂律。等效加速：基线达到该方法的损失所需的 "
        "FLOPs（或实测时间）与该方法自身之比；大于 1 即划算。FLOPs 与时间相同时之差相对于该幂律。末列为 FLOPs "
        "不超过它且全部参与训练的最佳方法，区间已按选择作校正（Šidák）。† 超出训练过的长度。",
    ),
    "line_speedup": (
        "Best effective speed-up against the plain baseline: {arm} {value} in FLOPs{rival}.",
        "相对普通基线的最佳等效加速：{arm}，FLOPs {value}{rival}。",
    ),
    "line_rival": (
        "; to the best trained arm of equal FLOPs ({baseline}) {gap}",
        "；与 FLOPs 相同的最佳可训练方法（{baseline}）相差 {gap}",
    ),
    "foot_time": (
        "Seconds are the baseline's median step times the ratio. Ratios without an interval are of separate runs, "
        "paired by seed, and no evidence.",
        "秒数为基线的单步中位耗时乘以比值。没有区间的比值来自各自的运行（按种子配对），不能作为证据。",
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
    "foot_environments": (
        "The runs were made in {count} different environments.",
        "这些运行来自 {count} 个不同的环境。",
    ),
    "many_arms": ("{count} arms", "{count} 个方法"),
    "seeds_of": ("seeds {seeds}", "种子 {seeds}"),
    "made_by": ("Made by oelm from run folders and what lies beside them.", "由 oelm 根据运行目录及其旁的文件生成。"),
    # Notes
    "note_not_comparable": (
        "* {arm} is not comparable with {baseline}: {differences}. The gap is not due to the method alone.",
        "* {arm} 与 {baseline} 不可直接比较：{differences}。其差距不能只归因于方法本身。",
    ),
    "note_one_seed": (
        "One seed, or one in common with a baseline, on {dataset} ({model}): {arms}. Without a second there is no "
        "interval, and the verdict stays undecided.",
        "{dataset}（{model}）上只有一个种子、或与基线只有一个共同种子的方法：{arms}。缺少第二个就没有置信区间，"
        "是否达标尚无定论。",
    ),
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
    "note_unequal": (
        "Compared with a baseline without their adapters or their start, because none that has them was trained "
        "alike, on {dataset} ({model}): {arms}.",
        "{dataset}（{model}）上，以下方法只能与不带相同可学习部件（或相同起点）的基线比较，"
        "因为没有同样训练的对应基线：{arms}。",
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
"""key -> (English, Chinese), or (English,) until someone writes the Chinese."""
