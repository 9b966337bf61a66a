// Every word of the page, English and Chinese side by side. Sentences about comparisons come from the server's reports.

const WORDS = {
  overview: ["Overview", "总览"], compare: ["Compare", "对比"], claims: ["Claims", "论断"], skip: ["Skip to content", "跳到正文"],
  language: ["中文", "English"], theme_auto: ["Theme: automatic", "主题：自动"], theme_light: ["Theme: light", "主题：浅色"], theme_dark: ["Theme: dark", "主题：深色"],
  live: ["live", "实时"], lost: ["The server does not answer. Is 'oelm dashboard' still running? This page goes on by itself when it is back.", "服务器没有响应。“oelm dashboard” 是否仍在运行？恢复后本页会自动继续。"],
  failed: ["This could not be shown: {why}", "无法显示：{why}"], loading: ["Reading…", "读取中…"], late: ["offline", "已断开"],
  no_token: ["This page needs its token. Open the address that 'oelm dashboard' printed.", "需要令牌。请打开 “oelm dashboard” 打印的地址。"],
  // States
  queued: ["queued", "排队中"], running: ["running", "运行中"], interrupted: ["interrupted", "已中断"], failed_state: ["failed", "失败"], finished: ["finished", "已完成"], dead: ["dead", "进程已消失"], unreadable: ["broken", "已损坏"],
  // Overview
  experiment: ["experiment", "实验"], run: ["run", "运行"], method: ["method", "方法"], dataset: ["dataset", "数据集"], seed: ["seed", "种子"], state: ["state", "状态"], progress: ["progress", "进度"], loss: ["loss", "损失"], score: ["score", "得分"], gap: ["gap", "与基线之差"], speed: ["tokens/s", "词元/秒"], eta: ["ETA", "剩余时间"], device: ["device", "设备"],
  gap_hint: ["gap to its baseline, same seed", "与同种子基线之差"], filter: ["Filter: method, data, experiment, state …", "筛选：方法、数据、实验、状态……"], runs: ["{n} runs", "{n} 个运行"], some_runs: ["{n} of {all} runs", "{n} / {all} 个运行"],
  none: ["No runs yet", "还没有运行"], none_where: ["Looked in {roots}.", "已查看：{roots}。"], none_do: ["Start some with 'oelm demo' or 'oelm train'; they appear here by themselves.", "用 “oelm demo” 或 “oelm train” 启动，运行会自动出现在这里。"],
  none_match: ["No run matches", "没有匹配的运行"], clear: ["Clear the filter", "清除筛选"], compare_n: ["Compare {n} runs", "对比 {n} 个运行"], select: ["select {run}", "选择 {run}"], select_all: ["select all shown", "选择全部显示的运行"], deselect: ["Deselect", "取消选择"], silent: ["silent for {time}", "已静默 {time}"], sort: ["sort by {what}", "按{what}排序"], narrow: ["{n} more: scroll or filter", "还有 {n} 个：滚动或筛选"],
  // Compare
  scope: ["runs from", "运行来源"], everything: ["all folders", "所有文件夹"], selected: ["{n} selected runs", "已选 {n} 个运行"], comparison: ["comparison", "比较"], metric: ["metric", "指标"], axis: ["over", "横轴"],
  step: ["steps", "步数"], tokens: ["tokens", "词元数"], flops: ["FLOPs", "FLOPs"], seconds: ["training time, s", "训练用时（秒）"], time: ["time", "时间"],
  log_x: ["log x", "横轴对数"], log_y: ["log y", "纵轴对数"], bands: ["seed bands", "种子范围"], smoothing: ["smoothing", "平滑"], arms: ["Arms", "方法"], all: ["all", "全选"], no_arms: ["none", "全不选"], open_runs: ["Not finished", "未完成"],
  metric_loss: ["loss", "损失"], metric_perplexity: ["perplexity", "困惑度"], metric_accuracy: ["accuracy", "准确率"], metric_f1: ["F1", "F1"], metric_bits_per_byte: ["bits per byte", "每字节比特数"], metric_grad_norm: ["gradient norm", "梯度范数"], metric_lr: ["learning rate", "学习率"], clipped: ["The first steps lie above the frame; log y, or a double click, shows all.", "最初几步超出图框上沿；选纵轴对数或双击可显示全部。"],
  train: ["training", "训练"], validation: ["validation", "验证"], curves: ["Learning curves", "学习曲线"], verdicts: ["Verdicts", "判定"], against: ["One against the other", "指标对指标"], notes: ["Notes", "说明"], more_notes: ["{n} more", "另有 {n} 条"], no_curve: ["No run here has recorded this metric over this axis.", "这里没有运行记录过该横轴上的这一指标。"],
  flops_hint: ["FLOPs are known for runs that recorded them, and estimated from parameters for decoders.", "FLOPs 取自运行记录；解码器未记录时按参数量估算。"],
  nothing: ["Nothing to compare yet", "还没有可对比的内容"], nothing_do: ["A comparison needs finished runs with the same data and model. Their curves appear here as soon as they have some.", "对比需要数据和模型相同的已完成运行；有曲线后会立即显示在这里。"], interval: ["Bars are 95 % intervals where there are several seeds.", "有多个种子时，误差线为 95 % 区间。"],
  fact_score: ["score", "得分"], fact_gap: ["gap to the plain baseline", "与普通基线之差"], fact_equal: ["gap to the equal baseline", "与同等配置基线之差"], fact_time: ["step time ÷ baseline's", "单步耗时 ÷ 基线"], fact_flops_ratio: ["training FLOPs ÷ baseline's", "训练 FLOPs ÷ 基线"], fact_parameters: ["parameters", "参数总数"], fact_trainable: ["trainable parameters", "可训练参数"], fact_frozen: ["frozen parameters", "冻结参数"], fact_checkpoint_bytes: ["checkpoint bytes", "检查点字节数"], fact_optimizer_bytes: ["optimizer bytes", "优化器字节数"], fact_peak_memory_bytes: ["peak memory, bytes", "峰值内存（字节）"], fact_loss: ["final loss", "最终损失"], fact_bits_per_byte: ["bits per byte", "每字节比特数"], fact_training_seconds: ["training time, s", "训练用时（秒）"], fact_median_step_time: ["median step, s", "单步中位耗时（秒）"],
  // Run
  network: ["Network", "网络"], trained: ["trained", "可训练"], frozen: ["frozen", "冻结"], weightless: ["no weights", "无权重"], thaws: ["frozen for a while", "暂时冻结"], adapter: ["adapter", "适配器"], layer: ["layer {n}", "第 {n} 层"], layers: ["layers {first}–{last}", "第 {first}–{last} 层"], embedding: ["embeddings", "嵌入"], head: ["head", "输出层"], ffn: ["FFN", "FFN"],
  verification: ["Verification", "核验"], verified: ["Frozen weights verified", "冻结权重已核验"], verified_none: ["Nothing is frozen", "无冻结参数"], verified_weightless: ["What does not train has no weights", "不训练的部分没有权重"], verified_not_yet: ["Verified at every checkpoint; the result is not there yet", "每个检查点都会核验；结果尚未产生"], verified_missing: ["The result does not say that frozen weights were verified", "结果未说明冻结权重已核验"], hashes: ["tensors hashed", "已哈希张量"], worst: ["worst ‖WWᵀ−I‖max of frozen matrices", "冻结矩阵中最大的 ‖WWᵀ−I‖max"], parameters: ["parameters", "参数总数"],
  timing: ["Where a step's time goes", "单步耗时构成"], data: ["data", "数据"], forward: ["forward", "前向"], backward: ["backward", "反向"], optimizer: ["optimizer", "优化器"], other: ["other", "其他"], median: ["median step", "单步中位耗时"], p95: ["95th percentile", "95 分位"], wall: ["wall time", "总用时"], validation_time: ["in validation", "其中验证"], memory: ["peak memory", "峰值内存"], no_timing: ["Written when the run ends.", "运行结束时写入。"],
  checkpoints: ["Checkpoints", "检查点"], no_checkpoints: ["None in this folder.", "该文件夹中没有检查点。"], size: ["size", "大小"], best: ["best", "最佳"], latest: ["latest", "最新"], samples: ["Samples over training", "训练过程中的样例"], log: ["Log", "日志"], no_log: ["Nothing was logged yet.", "尚无日志。"], config: ["Configuration", "配置"], raw: ["config.yaml", "config.yaml"], environment: ["Environment", "环境"], copy: ["Copy", "复制"], copied: ["Copied", "已复制"], gone: ["There is no such run any more", "该运行已不存在"], gone_do: ["It may have been moved or deleted. Go back to the overview.", "它可能已被移动或删除。请返回总览。"], broken: ["This folder is broken", "该文件夹已损坏"], broken_do: ["Mend or delete {path}; the page notices by itself.", "请修复或删除 {path}；本页会自动察觉。"], problem: ["{part}: {why}", "{part}：{why}"], of: ["of", "/"],
  // Claims
  claims_title: ["The original study's claims", "原研究的论断"], claims_text: ["Each claim with the arithmetic that follows from its own figures and, where there are finished runs here, ours.", "每条论断、由其自身数字推出的算术结果，以及（若此处有已完成的运行）我们的数据。"], published: ["published", "原文"], follows: ["follows", "推算"], ours: ["ours", "我们的"], reason: ["because", "原因"], consistent: ["consistent", "一致"], inconsistent: ["inconsistent", "不一致"], impossible: ["impossible", "不可能"], reproduced: ["reproduced", "已复现"], not_reproduced: ["not reproduced", "未复现"], not_tested: ["not tested", "未检验"],
};

const LANGUAGES = ["en", "zh"];
let current = LANGUAGES.includes(localStorage.getItem("lang")) ? localStorage.getItem("lang") : navigator.language.startsWith("zh") ? "zh" : "en";

export const language = () => current;

export function nextLanguage() {
  current = current === "en" ? "zh" : "en";
  localStorage.setItem("lang", current);
}

export function t(key, values = {}) {
  const text = (WORDS[key] || [key, key])[LANGUAGES.indexOf(current)];
  return text.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
}

// A metric of a run, as people call it.
export const metricName = (key) => (WORDS[`metric_${key}`] ? t(`metric_${key}`) : key.replaceAll("_", " "));

// A state, a verdict, a fact: ours if we know it, else as it came.
export const word = (key) => t(key === "failed" ? "failed_state" : String(key).replaceAll(" ", "_"), {}).replaceAll("_", " ");
