//! Llama 4 and others: a list of Python calls whose keyword arguments are literals. OLMo 3 and
//! MiniCPM 3 write each call on a line of its own.
//!
//! ```text
//! [weather(city="Oslo"), time()]
//! <|tool_call_start|>[weather(city="Oslo")]<|tool_call_end|>
//!
//! <function_calls>
//! weather(city='Oslo')
//! time()
//! </function_calls>
//! ```
//!
//! MiniCPM 3 puts the lines into a code fence between the special tokens of the second form.

use super::super::form::{Form, ReadCalls};
use super::super::frame::{Frame, Free};
use super::super::lark::{Lark, ToolGrammarError, comma_separated, is_required, part};
use super::super::literal::Literals;
use super::super::pattern::{Pattern, Position, Step};
use super::super::schema::properties;
use super::super::{ToolCall, ToolSpec};
use super::ToolFamily;

const BARE: Pattern = Pattern {
    trigger: "[",
    place: Position::Start,
    steps: &[
        Step::Literal("["),
        Step::Space,
        Step::Word,
        Step::Branch(&[("(", 1)]),
        Step::Python { opened: 1 },
    ],
    form: FORM,
};

pub(super) static FAMILY: ToolFamily = ToolFamily {
    name: "pythonic",
    aliases: &["llama4_pythonic"],
    signs: &[&["[func_name1("], &["<|python_start|>"]],
    vocabulary: &[],
    patterns: &[
        BARE,
        Pattern {
            trigger: "<|python_start|>",
            place: Position::Anywhere,
            steps: &[
                Step::Literal("<|python_start|>"),
                Step::Space,
                Step::Python { opened: 0 },
                Step::Space,
                Step::Literal("<|python_end|>"),
            ],
            form: FORM,
        },
    ],
    marks: &[],
    frame: Frame {
        before: "",
        trigger: "",
        open: "[",
        separator: Some(", "),
        close: "]",
        free: Free::Start {
            text: "",
            is_open: false,
            body: "/[^\\[<\\s](?s:.*)/",
            end: "",
            to_calls: None,
        },
    },
    item,
};

pub(super) static MARKED: ToolFamily = ToolFamily {
    name: "lfm2",
    aliases: &[],
    signs: &[&["<|tool_call_start|>"], &["<|tool_list_start|>"]],
    vocabulary: &["<|tool_call_start|>", "<|tool_call_end|>"],
    patterns: &[
        Pattern {
            trigger: "<|tool_call_start|>",
            place: Position::Anywhere,
            steps: &[
                Step::Literal("<|tool_call_start|>"),
                Step::Space,
                Step::Python { opened: 0 },
                Step::Space,
                Step::Literal("<|tool_call_end|>"),
            ],
            form: FORM,
        },
        BARE,
    ],
    marks: &[],
    frame: Frame {
        before: "",
        trigger: "<|tool_call_start|>",
        open: "[",
        separator: Some(", "),
        close: "]<|tool_call_end|>",
        free: Free::Anywhere,
    },
    item,
};

pub(super) static OLMO3: ToolFamily = ToolFamily {
    name: "olmo3",
    aliases: &[],
    signs: &[&["<function_calls>"]],
    vocabulary: &[],
    patterns: &[Pattern {
        trigger: "<function_calls>",
        place: Position::Anywhere,
        steps: &[Step::Literal("<function_calls>"), Step::Until("</function_calls>")],
        form: LINES,
    }],
    marks: &[],
    frame: Frame {
        before: "\n",
        trigger: "<function_calls>",
        open: "\n",
        separator: Some("\n"),
        close: "\n</function_calls>",
        free: Free::Anywhere,
    },
    item,
};

pub(super) static MINICPM3: ToolFamily = ToolFamily {
    name: "minicpm3",
    aliases: &[],
    signs: &[&["<|tool_call_start|>", "```python"]],
    vocabulary: &[],
    patterns: &[Pattern {
        trigger: "<|tool_call_start|>",
        place: Position::Anywhere,
        steps: &[
            Step::Literal("<|tool_call_start|>"),
            Step::Space,
            Step::Literal("```python"),
            Step::Until("<|tool_call_end|>"),
        ],
        form: LINES,
    }],
    marks: &[],
    frame: Frame {
        before: "\n",
        trigger: "<|tool_call_start|>",
        open: "\n```python\n",
        separator: Some("\n"),
        close: "\n```\n<|tool_call_end|>",
        free: Free::Anywhere,
    },
    item,
};

const FORM: Form = Form::Literals(|fields, rest, _| read(fields, rest, read_list));
const LINES: Form = Form::Literals(|fields, rest, _| read(fields, rest, read_lines));

/// Reads the calls in the last field, or in `rest` if they have no end; `None` if calls with an end
/// are malformed.
fn read(fields: &[&str], rest: Option<&str>, calls: ReadLiterals) -> Option<ReadCalls> {
    let mut literals = Literals::python(rest.or(fields.last().copied())?);
    let mut read = ReadCalls { calls: Vec::new(), is_cut: true };
    let is_whole = calls(&mut literals, &mut read).is_some();
    (is_whole || rest.is_some()).then_some(read)
}

/// Appends calls to those read; returns `None` where they are malformed or end early.
type ReadLiterals = fn(&mut Literals<'_>, &mut ReadCalls) -> Option<()>;

/// Appends the calls of a list to `read`; returns `None` where the list is malformed or ends early.
fn read_list(literals: &mut Literals<'_>, read: &mut ReadCalls) -> Option<()> {
    literals.take("[")?;
    loop {
        read_call(literals, read)?;
        if literals.take(",").is_none() {
            literals.take("]")?;
            return literals.is_empty().then_some(());
        }
    }
}

/// Appends the calls of lines, perhaps followed by the end of a code fence, to `read`; returns
/// `None` where a line is malformed or ends early.
fn read_lines(literals: &mut Literals<'_>, read: &mut ReadCalls) -> Option<()> {
    loop {
        read_call(literals, read)?;
        if literals.take("```").is_some() || literals.is_empty() {
            return literals.is_empty().then_some(());
        }
    }
}

fn read_call(literals: &mut Literals<'_>, read: &mut ReadCalls) -> Option<()> {
    let name = literals.name()?;
    literals.take("(")?;
    let arguments = literals.members("=", ")");
    read.calls.push(ToolCall::new(name, &arguments.json()));
    read.is_cut = !arguments.is_whole;
    arguments.is_whole.then_some(())
}

/// Builds the grammar of a call. Values are JSON, which is Python's notation except for three
/// words; the parser reads both spellings.
fn item(lark: &mut Lark<'_>, tool: &ToolSpec) -> Result<String, ToolGrammarError> {
    let (mut required, mut optional) = (Vec::new(), Vec::new());
    for (name, schema) in properties(&tool.parameters).into_iter().flatten() {
        let head = lark.text(&format!("{name}="));
        let member = lark.rule(&format!("{head} {}", Lark::json(&part(tool, schema))));
        if is_required(tool, name) { &mut required } else { &mut optional }.push(member);
    }
    let head = lark.text(&format!("{}(", tool.name));
    Ok(format!("{head} {} \")\"", comma_separated(&required, &optional, "\", \"")))
}
