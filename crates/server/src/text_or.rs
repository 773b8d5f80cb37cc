//! A field that is either a string or a list.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

/// A string or a list.
#[derive(Debug, PartialEq)]
pub(crate) enum TextOr<T> {
    Text(String),
    List(Vec<T>),
}

/// An element of such a list.
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
