//! One Jinja template in an environment that behaves like the one transformers sets up
//! (`utils/chat_template_utils.py`, version 5.23).

use std::error::Error as _;
use std::{fmt, io};

use jiff::Zoned;
use jiff::fmt::strtime;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::Value as Json;

use super::{generation, json, methods, python};
use crate::error::TextError;
use crate::tokenizer::ENCODE_BYTES_MAX;

/// Maximum number of steps of a template; this many take less than a second. Known templates need
/// some 50 for each message and some 500 for each tool.
const STEPS_MAX: u64 = 5_000_000;

/// Maximum depth of nested macro calls, counted as minijinja does (10 for a call). Protects the
/// stack of a server thread.
const RECURSION_MAX: usize = 200;

/// Maximum size of a prompt in bytes; a larger one could not be tokenized.
const PROMPT_BYTES_MAX: usize = ENCODE_BYTES_MAX;

/// Name of the template in error messages.
const NAME: &str = "chat template";

/// A compiled template.
pub(super) struct Engine {
    environment: Environment<'static>,
}

/// The error of a template that called `raise_exception`, with the message that it passed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

impl Engine {
    /// Compiles a template; the error is a sentence that names the line.
    pub(super) fn compile(source: &str) -> Result<Engine, String> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| error.to_string())?);
        environment.set_fuel(Some(STEPS_MAX));
        environment.set_recursion_limit(RECURSION_MAX);
        environment.set_debug(false);
        minijinja_contrib::add_to_environment(&mut environment);
        environment.set_unknown_method_callback(methods::call);
        environment.remove_global("debug");
        environment.set_formatter(python::write);
        environment.add_filter("string", python::string);
        environment.add_filter("tojson", json::tojson);
        environment.add_test("iterable", python::is_iterable);
        environment.add_test("sequence", python::is_sequence);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "the template raised an exception")
                .with_source(Refusal(message)))
        });
        environment.add_function("strftime_now", |format: String| strftime(&format, &Zoned::now()));
        environment
            .add_template_owned(NAME, generation::rewrite(source))
            .map_err(|error| describe(&error))?;
        Ok(Engine { environment })
    }

    /// Makes `strftime_now` return this time.
    pub(super) fn fix_time(&mut self, unix_seconds: i64) {
        let time = jiff::Timestamp::from_second(unix_seconds).unwrap_or_default();
        let time = time.to_zoned(jiff::tz::TimeZone::UTC);
        self.environment
            .add_function("strftime_now", move |format: String| strftime(&format, &time));
    }

    /// Runs the template and returns the prompt's text.
    pub(super) fn render(&self, variables: Value) -> Result<String, TextError> {
        let template = self.environment.get_template(NAME).expect("compile has added it");
        let mut prompt = Bounded { bytes: Vec::new(), overflowed: false };
        match template.render_captured_to(variables, &mut prompt) {
            Ok(_) => Ok(String::from_utf8(prompt.bytes).expect("a template writes text")),
            Err(_) if prompt.overflowed => {
                Err(TextError::PromptTooLarge { limit_bytes: PROMPT_BYTES_MAX })
            }
            Err(error) => Err(explain(&error)),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// A writer that fails above a size limit.
struct Bounded {
    bytes: Vec<u8>,
    overflowed: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > PROMPT_BYTES_MAX {
            self.overflowed = true;
            return Err(io::Error::other("the prompt is too large"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Implements `strftime_now`; the format is that of C.
fn strftime(format: &str, time: &Zoned) -> Result<String, Error> {
    strtime::format(format, time)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}

/// Classifies an error of the template by what the caller can do about it.
fn explain(error: &Error) -> TextError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Refusal(message)) = current.downcast_ref() {
            return TextError::Refused { message: message.clone() };
        }
        let kind = current.downcast_ref::<Error>().map(Error::kind);
        if kind == Some(ErrorKind::OutOfFuel) {
            return TextError::TooManySteps { limit_steps: STEPS_MAX };
        }
        cause = current.source();
    }
    TextError::Render { reason: describe(error) }
}

/// Formats an error with its causes on one line.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(current) = cause {
        text.push_str(": ");
        text.push_str(&current.to_string());
        cause = current.source();
    }
    text
}

/// Converts a JSON value for templates; the order of keys is kept.
pub(super) fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(value), _, _) => Value::from(value),
            (_, Some(value), _) => Value::from(value),
            (_, _, value) => Value::from(value),
        },
        Json::String(text) => Value::from(text),
        Json::Array(list) => value_of_list(list),
        Json::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, value)| (key, value_of(value))))
        }
    }
}

/// Converts a list of JSON values for templates.
pub(super) fn value_of_list(list: &[Json]) -> Value {
    Value::from(list.iter().map(value_of).collect::<Vec<Value>>())
}
