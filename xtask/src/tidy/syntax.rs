//! Rust sources as trees of tokens, without their tests. Paths and parameters can be read from tokens
//! alone, macros' arguments included, which a parser of items would not look into.

use std::fs;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// One token, or what stands between two brackets.
#[derive(Clone, Debug)]
pub(super) enum Token {
    Word { text: String, line: usize },
    Mark(char),
    Group(Delimiter, Vec<Token>),
    Literal,
}

impl Token {
    pub(super) fn word(&self) -> Option<&str> {
        if let Token::Word { text, .. } = self { Some(text) } else { None }
    }

    pub(super) fn is_word(&self, wanted: &str) -> bool {
        self.word() == Some(wanted)
    }

    pub(super) fn is_mark(&self, wanted: char) -> bool {
        matches!(self, Token::Mark(mark) if *mark == wanted)
    }

    pub(super) fn group(&self, wanted: Delimiter) -> Option<&[Token]> {
        match self {
            Token::Group(delimiter, inner) if *delimiter == wanted => Some(inner),
            _ => None,
        }
    }
}

/// The tokens of a file without comments and without what is compiled for tests only.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Token>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    parse(&text).with_context(|| format!("reading {}", path.display()))
}

pub(super) fn parse(text: &str) -> anyhow::Result<Vec<Token>> {
    let stream = TokenStream::from_str(text).map_err(|err| anyhow!("not Rust: {err}"))?;
    Ok(without_tests(stream))
}

fn without_tests(stream: TokenStream) -> Vec<Token> {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut tokens = Vec::with_capacity(trees.len());
    let mut idx = 0;
    while let Some(tree) = trees.get(idx) {
        if is_for_tests(&trees[idx..]) {
            idx += 2 + item_len(&trees[idx + 2..]);
            continue;
        }
        tokens.push(match tree {
            TokenTree::Ident(ident) => {
                let text = ident.to_string().trim_start_matches("r#").to_owned();
                Token::Word { text, line: ident.span().start().line }
            }
            TokenTree::Punct(punct) => Token::Mark(punct.as_char()),
            TokenTree::Literal(_) => Token::Literal,
            TokenTree::Group(group) => {
                Token::Group(group.delimiter(), without_tests(group.stream()))
            }
        });
        idx += 1;
    }
    tokens
}

/// Whether tokens begin with `#[cfg(test)]`, alone or with further conditions.
fn is_for_tests(trees: &[TokenTree]) -> bool {
    let [TokenTree::Punct(mark), TokenTree::Group(group), ..] = trees else { return false };
    let text: String = group.stream().to_string().split_whitespace().collect();
    mark.as_char() == '#' && (text == "cfg(test)" || text.starts_with("cfg(all(test,"))
}

/// Returns the number of tokens of the item with which `trees` begin; 0 if they begin with
/// something else, such as a field, whose tokens are then kept.
fn item_len(trees: &[TokenTree]) -> usize {
    let is_word = |tree: &TokenTree, words: &[&str]| matches!(tree, TokenTree::Ident(ident) if words.contains(&ident.to_string().as_str()));
    let is_mark =
        |tree: &TokenTree, wanted| matches!(tree, TokenTree::Punct(it) if it.as_char() == wanted);
    let mut idx = 0;
    // Further attributes and qualifiers.
    while let Some(tree) = trees.get(idx) {
        let qualifies = is_word(tree, &["pub", "unsafe", "async", "extern"])
            || is_mark(tree, '#')
            || matches!(tree, TokenTree::Group(it) if it.delimiter() != Delimiter::Brace)
            || matches!(tree, TokenTree::Literal(_));
        if !qualifies {
            break;
        }
        idx += 1;
    }
    let Some(keyword) = trees.get(idx) else { return 0 };
    let ends_with_mark = is_word(keyword, &["use", "const", "static", "type", "let"]);
    let items = ["fn", "mod", "struct", "enum", "union", "trait", "impl", "macro_rules"];
    if !ends_with_mark && !is_word(keyword, &items) {
        return 0;
    }
    // `const fn` ends with its body.
    let ends_with_mark =
        ends_with_mark && !trees.get(idx + 1).is_some_and(|it| is_word(it, &["fn"]));
    let is_end = |tree: &TokenTree| {
        is_mark(tree, ';')
            || !ends_with_mark
                && matches!(tree, TokenTree::Group(it) if it.delimiter() == Delimiter::Brace)
    };
    trees.iter().position(is_end).map_or(trees.len(), |end| end + 1)
}
