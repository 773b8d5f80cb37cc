//! Answers of families whose markup several families share.

use super::{Example, OSLO};

/// Reasoning format, tool format, answer, segments.
pub(super) const EXAMPLES: &[Example] = &[
    (
        "qwen3",
        "hermes",
        "<think>\nHm, <tool_call>{\"name\": \"time\"}</tool_call>?\n</think>\n\nSo:\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>",
        &[
            "thought Hm, <tool_call>{\"name\": \"time\"}</tool_call>?",
            "text So:",
            OSLO,
            "call time {}",
        ],
    ),
    (
        "none",
        "qwen",
        "Sure. [Calling tool: weather({\"city\": \"Oslo\", \"days\": 3})]",
        &["text Sure.", OSLO],
    ),
    (
        "none",
        "qwen3_coder",
        "I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n<parameter=tags>\n[\"a\"]\n</parameter>\n</function>\n</tool_call>\n<function=we>\n<parameter=note>\n17\n</parameter>\n</function>\n</tool_call>",
        &[
            "text I look.",
            "call weather {\"city\": \"Oslo\", \"days\": 3, \"metric\": true, \"tags\": [\"a\"]}",
            "call we {\"note\": \"17\"}",
        ],
    ),
    (
        "none",
        "qwen3_coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\n<b>\"A\"\n</b>\n</parameter>\n<parameter=days>\nmany\n</parameter>\n</function>\n</tool_call>",
        &["call weather {\"city\": \"<b>\\\"A\\\"\\n</b>\", \"days\": \"many\"}"],
    ),
    (
        "none",
        "llama3_json",
        "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\", \"days\": 3}}; {\"name\": \"time\", \"parameters\": {}}",
        &[OSLO, "call time {}"],
    ),
    (
        "none",
        "llama",
        "<|python_tag|>{\"type\": \"function\", \"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\", \"days\": 3}}",
        &[OSLO],
    ),
    ("none", "llama", "<function=weather>{\"city\": \"Oslo\", \"days\": 3}</function>", &[OSLO]),
    (
        "none",
        "functionary",
        "I look. <function=weather>{\"city\": \"Oslo\", \"days\": 3}</function><function=time>{}</function>",
        &["text I look.", OSLO, "call time {}"],
    ),
    (
        "none",
        "functionary_v3_2",
        "all\nI look.>>>weather\n{\"city\": \"Oslo\", \"days\": 3}>>>time\n{}",
        &["text I look.", OSLO, "call time {}"],
    ),
    (
        "none",
        "functionary_v3_2",
        "weather\n{\"city\": \"Oslo\", \"days\": 3}>>>all\nDone, >>> that's it.",
        &[OSLO, "text Done, >>> that's it."],
    ),
    (
        "none",
        "functionary_v3_2",
        ">>>weather\n{\"city\": \"Oslo\", \"days\": 3}>>>time\n{}",
        &[OSLO, "call time {}"],
    ),
    // Source code for the tool `python`, as it is and as JSON.
    (
        "none",
        "functionary_v3_2",
        "all\nI count.>>>python\nif 1 >> 0:\n    print(\"é\")\n>>>time\n{}",
        &[
            "text I count.",
            "call python {\"code\": \"if 1 >> 0:\\n    print(\\\"é\\\")\\n\"}",
            "call time {}",
        ],
    ),
    (
        "none",
        "functionary_v3_2",
        "python\n# >>> 1 + 1\n2",
        &["call python {\"code\": \"# >>> 1 + 1\\n2\"}"],
    ),
    (
        "none",
        "functionary_v3_2",
        "python\n{\"code\": \"1 >>>x\"}>>>time\n{}",
        &["call python {\"code\": \"1 >>>x\"}", "call time {}"],
    ),
    (
        "none",
        "functionary",
        "<function=time>{}</function>\n<|python_tag|>print(1)",
        &["call time {}", "call python {\"code\": \"print(1)\"}"],
    ),
    // A message to the user that looks like the beginning of a call.
    ("none", "functionary_v3_2", "all\ntime\n{}", &["text time\n{}"]),
    ("none", "functionary_v3_2", "allow {me}", &["text allow {me}"]),
    (
        "poolside_v1",
        "poolside_v1",
        "<think>Hm.</think>I look.<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>\n<tool_call>we<arg_key>note</arg_key><arg_value>  x(\"é\")\n </arg_value></tool_call><tool_call>time</tool_call>",
        &[
            "thought Hm.",
            "text I look.",
            OSLO,
            "call we {\"note\": \"  x(\\\"é\\\")\\n \"}",
            "call time {}",
        ],
    ),
    ("none", "llama", "<|python_tag|>print(1)", &["text <|python_tag|>print(1)"]),
    (
        "none",
        "llama",
        "As JSON: {\"name\": \"time\", \"parameters\": {}}",
        &["text As JSON: {\"name\": \"time\", \"parameters\": {}}"],
    ),
    (
        "none",
        "pythonic",
        "[weather(city=\"Oslo\", days=3), we(note='it\\'s \\u00e9]'), time()]",
        &[OSLO, "call we {\"note\": \"it's é]\"}", "call time {}"],
    ),
    (
        "none",
        "pythonic",
        "[weather(city='Oslo', days=3, tags=['a', {'k': (True, None, -1.5e3)}])]",
        &[
            "call weather {\"city\": \"Oslo\", \"days\": 3, \"tags\": [\"a\", {\"k\": [true, null, -1.5e3]}]}",
        ],
    ),
    ("none", "pythonic", "[weather](https://x) says", &["text [weather](https://x) says"]),
    (
        "none",
        "lfm2",
        "Now <|tool_call_start|>[weather(city=\"Oslo\", days=3)]<|tool_call_end|>",
        &["text Now", OSLO],
    ),
    (
        "mistral",
        "mistral",
        "[THINK]Hm.[/THINK]Well. [TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}, \"id\": \"abcdef123\"}, {\"name\": \"time\", \"arguments\": {}}]",
        &[
            "thought Hm.",
            "text Well.",
            "call weather #abcdef123 {\"city\": \"Oslo\", \"days\": 3}",
            "call time {}",
        ],
    ),
    (
        "none",
        "mistral_args",
        "[TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\", \"days\": 3}[TOOL_CALLS]time[CALL_ID]abcdef123[ARGS]{}[TOOL_CALLS]time{}",
        &[OSLO, "call time #abcdef123 {}", "call time {}"],
    ),
    (
        "deepseek_r1",
        "deepseek_v3",
        "<think>\nHm.\n</think>\n\nOne moment<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Oslo\", \"days\": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        &["thought Hm.", "text One moment", OSLO, "call time {}"],
    ),
    (
        "none",
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Oslo\", \"days\": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        &[OSLO, "call time {}"],
    ),
    (
        "none",
        "kimi_k2",
        "Let me see.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Oslo\", \"days\": 3}<|tool_call_end|><|tool_call_begin|>functions.time:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        &[
            "text Let me see.",
            "call weather #functions.weather:0 {\"city\": \"Oslo\", \"days\": 3}",
            "call time #functions.time:1 {}",
        ],
    ),
    (
        "glm45",
        "glm47",
        "\n<think></think>\nOf course.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>time</tool_call>",
        &["text Of course.", OSLO, "call time {}"],
    ),
    (
        "harmony",
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Oslo\", \"days\": 3}",
        &["thought Hm.", "text I look.", OSLO],
    ),
    (
        "harmony",
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Oslo\", \"days\": 3}<|call|>",
        &["thought Hm.", OSLO],
    ),
    (
        "gpt_oss",
        "none",
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two <b>.<|return|>",
        &["thought One.", "text Two <b>."],
    ),
    (
        "minimax_m2",
        "minimax_m2",
        "<think>\nHm\n</think>\n\nI look.\n<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Oslo</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"time\">\n</invoke>\n</minimax:tool_call>",
        &["thought Hm", "text I look.", OSLO, "call time {}"],
    ),
    (
        "gemma4",
        "gemma4",
        "<|channel>thought\nHm.\n<channel|>Yes. <|tool_call>call:weather{city:<|\"|>Oslo<|\"|>,days:3}<tool_call|><|tool_call>call:weather{city:<|\"|>{a:\"b\"},<|\"|>,days:1,tags:[<|\"|>a<|\"|>],x:{y:{},z:[]}}<tool_call|>",
        &[
            "thought Hm.",
            "text Yes.",
            OSLO,
            "call weather {\"city\": \"{a:\\\"b\\\"},\", \"days\": 1, \"tags\": [\"a\"], \"x\": {\"y\": {}, \"z\": []}}",
        ],
    ),
    (
        "none",
        "function_gemma",
        "<start_function_call>call:weather{city:<escape>Oslo<escape>,days:3}<end_function_call>",
        &[OSLO],
    ),
    (
        "none",
        "json",
        " [{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}},\n {\"type\": \"function\", \"function\": {\"name\": \"time\", \"arguments\": \"{}\"}}]\n",
        &[OSLO, "call time {}"],
    ),
    ("none", "json", "```json\n{\"name\": \"time\", \"parameters\": {}}\n```", &["call time {}"]),
    (
        "none",
        "phi4",
        "<|tool_call|>[{\"name\": \"time\", \"arguments\": {}}]<|/tool_call|>",
        &["call time {}"],
    ),
    (
        "none",
        "json",
        "{\"name\": \"time\", \"parameters\": {}} is it.",
        &["text {\"name\": \"time\", \"parameters\": {}} is it."],
    ),
    ("none", "json", "{\"answer\": 42}", &["text {\"answer\": 42}"]),
    ("seed_oss", "none", "<seed:think>a</seed:think>b", &["thought a", "text b"]),
    ("think", "none", "<think>never closed ", &["thought never closed "]),
    ("think", "none", "Not <think>here</think>.", &["text Not <think>here</think>."]),
];
