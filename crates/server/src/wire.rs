//! Forms of fields that several protocols have: a string or a list, a seed; and helpers for JSON and
//! schemas.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::{Value, json};
use utoipa::openapi::schema::{ArrayBuilder, OneOfBuilder, Type};
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

/// A string or a list.
#[derive(Debug, PartialEq)]
pub(crate) enum TextOr<T> {
    Text(String),
    List(Vec<T>),
}

/// An element of the list in a [`TextOr`].
pub(crate) trait Listed {
    /// Both forms of the field in words, for error messages.
    const EXPECTED: &'static str;
}

impl<'de, T: Deserialize<'de> + Listed> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TextOr<T>, D::Error> {
        struct TextOrVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de> + Listed> Visitor<'de> for TextOrVisitor<T> {
            type Value = TextOr<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<TextOr<T>, E> {
                Ok(TextOr::Text(value.to_owned()))
            }

            fn visit_string<E: de::Error>(self, value: String) -> Result<TextOr<T>, E> {
                Ok(TextOr::Text(value))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<TextOr<T>, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(TextOr::List)
            }
        }
        deserializer.deserialize_any(TextOrVisitor(PhantomData))
    }
}

/// A string or a list of strings.
#[derive(Debug, PartialEq)]
pub(crate) struct Strings(pub(crate) Vec<String>);

/// A seed: any 64-bit integer, signed or unsigned.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Seed(pub(crate) u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Seed, D::Error> {
        struct SeedVisitor;
        impl Visitor<'_> for SeedVisitor {
            type Value = Seed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer of 64 bits")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Seed, E> {
                Ok(Seed(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Seed, E> {
                Ok(Seed(value.cast_unsigned()))
            }
        }
        deserializer.deserialize_any(SeedVisitor)
    }
}

impl Listed for String {
    const EXPECTED: &'static str = "a string or a list of strings";
}

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strings, D::Error> {
        Ok(Strings(match TextOr::deserialize(deserializer)? {
            TextOr::Text(text) => vec![text],
            TextOr::List(texts) => texts,
        }))
    }
}

/// Describes a body that is parsed in parts, each of which reads its own fields. It is never created.
macro_rules! body_schema {
    ($(#[$doc:meta])* $vis:vis struct $name:ident { model, $($part:ident: $fields:ident),+ }) => {
        $(#[$doc])*
        #[derive(utoipa::ToSchema)]
        #[expect(dead_code, reason = "it is only described")]
        $vis struct $name {
            /// Id or alias of the model. Default: `default`, the default model.
            model: Option<String>,
            $(#[serde(flatten)] $part: $fields,)+
        }
    };
    ($(#[$doc:meta])* $vis:vis struct $name:ident { $($part:ident: $fields:ident),+ }) => {
        $(#[$doc])*
        #[derive(utoipa::ToSchema)]
        #[expect(dead_code, reason = "it is only described")]
        $vis struct $name {
            $(#[serde(flatten)] $part: $fields,)+
        }
    };
}
pub(crate) use body_schema;

/// Returns a function in the form that chat templates take.
pub(crate) fn function_tool(
    name: Option<String>,
    description: Option<String>,
    parameters: Option<Value>,
    strict: Option<bool>,
) -> Value {
    let mut function = json!({});
    let optional = [
        ("name", Some(Value::from(name))),
        ("description", description.map(Value::from)),
        ("parameters", parameters),
        ("strict", strict.map(Value::from)),
    ];
    for (field, value) in optional.into_iter().filter_map(|(field, value)| Some((field, value?))) {
        function[field] = value;
    }
    json!({"type": "function", "function": function})
}

/// Adds the members of one JSON object to another.
pub(crate) fn merged(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

/// Returns the schema of a string.
pub(crate) fn string() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// Returns the schema of a list of `items`.
pub(crate) fn list(items: impl Into<RefOr<Schema>>) -> ArrayBuilder {
    ArrayBuilder::new().items(items.into())
}

impl PartialSchema for Seed {
    fn schema() -> RefOr<Schema> {
        let format = SchemaFormat::KnownFormat(KnownFormat::Int64);
        ObjectBuilder::new().schema_type(Type::Integer).format(Some(format)).into()
    }
}

impl ToSchema for Seed {}

impl PartialSchema for Strings {
    fn schema() -> RefOr<Schema> {
        OneOfBuilder::new().item(string()).item(list(string())).into()
    }
}

impl ToSchema for Strings {}
