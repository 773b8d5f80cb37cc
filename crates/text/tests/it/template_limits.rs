//! Malicious templates and conversations.

use jackalope_text::{ChatPrompt, TextError};
use serde_json::{Map, Value, json};

use crate::checkpoint::Checkpoint;

fn render_with(source: &str, messages: &[Value], kwargs: &Value) -> Result<String, TextError> {
    Checkpoint::with_template(source)
        .template()
        .render(&ChatPrompt {
            messages,
            tools: None,
            kwargs: kwargs.as_object().unwrap(),
            add_generation_prompt: true,
        })
        .map(|rendered| rendered.text().to_owned())
}

fn render(source: &str, messages: &[Value]) -> Result<String, TextError> {
    render_with(source, messages, &json!({}))
}

fn user(content: &Value) -> Value {
    json!({"role": "user", "content": content})
}

#[test]
fn a_template_that_does_not_end_is_stopped() {
    let forever = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    let error = render(forever, &[user(&json!("x"))]).unwrap_err();
    assert_eq!(error, TextError::TooManySteps { limit_steps: 5_000_000 });
}

#[test]
fn a_template_that_calls_itself_is_stopped_on_a_small_stack() {
    let recursive = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    let loops = "{% for a in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}";
    for source in [recursive, loops] {
        let small = std::thread::Builder::new().stack_size(2 << 20);
        let result = small.spawn(move || render(source, &[user(&json!("x"))])).unwrap().join();
        assert!(matches!(result.unwrap(), Err(TextError::Render { .. })), "{source}");
    }
}

#[test]
fn a_prompt_beyond_the_limit_is_refused() {
    let endless = "{% for a in range(9999) %}{{ messages[0].content }}{% endfor %}";
    let error = render(endless, &[user(&json!("x".repeat(10_000)))]).unwrap_err();
    assert_eq!(error, TextError::PromptTooLarge { limit_bytes: 16 << 20 });
}

#[test]
fn a_value_nested_too_deeply_is_no_json() {
    let nested = "{% set ns = namespace(x=[]) %}{% for a in range(900) %}{% set ns.x = [ns.x] %}\
                  {% endfor %}{{ ns.x | tojson }}";
    let error = render(nested, &[user(&json!("x"))]).unwrap_err().to_string();
    assert!(error.contains("nested too deeply"), "{error}");
}

#[test]
fn no_template_reads_files() {
    for source in ["{% include '/etc/passwd' %}", "{% extends 'chat_template.jinja' %}"] {
        assert!(render(source, &[user(&json!("x"))]).is_err(), "{source}");
    }
}

#[test]
fn a_refusal_carries_the_words_of_the_template() {
    let source = "{% macro f() %}{{ raise_exception('Only ' ~ 'cats!') }}{% endmacro %}{{ f() }}";
    let error = render(source, &[user(&json!("x"))]).unwrap_err();
    assert_eq!(error, TextError::Refused { message: "Only cats!".to_owned() });
}

#[test]
fn messages_of_impossible_form_are_named() {
    let chat = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let image = json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]);
    let cases = [
        (vec![], "messages must not be empty"),
        (vec![json!("hello")], "messages[0] must be an object"),
        (vec![user(&json!("a")), user(&json!(5))], "messages[1].content must be a string"),
        (vec![user(&image)], "messages[0].content[1] has type image_url"),
        (vec![user(&json!([{"type": "text"}]))], "messages[0].content[0] has type text"),
        (vec![user(&json!(["a"]))], "messages[0].content[0] has type none"),
    ];
    for (messages, words) in cases {
        let error = render(chat, &messages).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn variables_that_have_fields_of_their_own_are_not_overwritten() {
    for name in ["messages", "tools", "add_generation_prompt"] {
        let error = render_with("x", &[user(&json!("x"))], &json!({ name: [] })).unwrap_err();
        assert_eq!(error, TextError::ReservedKwarg { name: name.to_owned() });
    }
    let shown = "{{ bos_token }}{{ custom }}{{ documents[0].title }}";
    let kwargs = json!({"bos_token": "B", "custom": 1, "documents": [{"title": "T"}]});
    assert_eq!(render_with(shown, &[user(&json!("x"))], &kwargs).unwrap(), "B1T");
}

#[test]
fn messages_take_the_form_that_the_template_takes() {
    let strings = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let parts =
        "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}";
    let both = "{% for m in messages %}{% if m.content is string %}[{{ m.content }}]{% else %}\
                {% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}";
    let list = user(&json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]));
    let messages = [user(&json!("x")), list];
    assert_eq!(render(strings, &messages).unwrap(), "<user>x<user>ab");
    assert_eq!(render(parts, &messages).unwrap(), "[x][a][b]");
    assert_eq!(render(both, &messages).unwrap(), "[x][a][b]");

    let developer = json!({"role": "developer", "content": "d"});
    assert_eq!(render(strings, std::slice::from_ref(&developer)).unwrap(), "<system>d");
    let knows = format!("{strings}{{# developer #}}");
    assert_eq!(render(&knows, &[developer]).unwrap(), "<developer>d");
}

#[test]
fn reasoning_is_found_under_each_of_its_names() {
    let shown = "{% for m in messages %}{{ m.reasoning_content }},{{ m.thinking }};{% endfor %}";
    for name in ["reasoning_content", "reasoning", "thinking"] {
        let message = json!({"role": "assistant", "content": "x", name: "hm"});
        assert_eq!(render(shown, &[message]).unwrap(), "hm,hm;", "{name}");
    }
    let both =
        json!({"role": "assistant", "reasoning_content": null, "thinking": "t", "reasoning": "r"});
    assert_eq!(render(shown, &[both]).unwrap(), "t,t;");
}

#[test]
fn a_result_bears_the_name_of_the_tool_that_was_called() {
    let shown = "{% for m in messages %}{{ m.role }}:{{ m.name }};{% endfor %}";
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let messages = [
        json!({"role": "assistant", "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "c1", "content": "1"}),
        json!({"role": "tool", "tool_call_id": "c1", "name": "own", "content": "1"}),
        json!({"role": "tool", "tool_call_id": "c2", "content": "1"}),
    ];
    assert_eq!(render(shown, &messages).unwrap(), "assistant:;tool:f;tool:own;tool:;");
}

#[test]
fn tool_arguments_take_the_form_that_the_template_takes() {
    let with = |how: &str| {
        format!(
            "{{% for m in messages %}}{{{{ m.content }}}}{{% for c in m.tool_calls %}}{how}\
             {{% endfor %}}{{% endfor %}}"
        )
    };
    let call = |arguments: Value| {
        [json!({"role": "assistant", "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": arguments}},
        ]})]
    };
    let objects = with("{{ c.function.arguments | tojson }}");
    let strings = with("{{ 'args ' + c.function.arguments }}");
    for arguments in [json!({"a": "é", "b": 1}), json!("{\"a\": \"é\", \"b\": 1}")] {
        let messages = call(arguments.clone());
        assert_eq!(render(&objects, &messages).unwrap(), "{\"a\": \"é\", \"b\": 1}");
        let strict = render(&strings, &messages).unwrap();
        let read: Value = serde_json::from_str(strict.strip_prefix("args ").unwrap()).unwrap();
        assert_eq!(read, json!({"a": "é", "b": 1}));
    }
    // A value that is no object is unchanged.
    assert_eq!(render(&objects, &call(json!("nonsense"))).unwrap(), "\"nonsense\"");
    assert_eq!(render(&objects, &call(json!(""))).unwrap(), "{}");
}

#[test]
fn the_clock_stands_still_if_told_to() {
    let template = Checkpoint::with_template("{{ strftime_now('%Y-%m-%d') }}").template();
    let messages = [user(&json!("x"))];
    let prompt = ChatPrompt {
        messages: &messages,
        tools: None,
        kwargs: &Map::new(),
        add_generation_prompt: true,
    };
    assert!(template.render(&prompt).unwrap().text().starts_with("20"));
    assert_eq!(template.at_fixed_time(0).render(&prompt).unwrap().text(), "1970-01-01");
}
