//! Parameters whose type is a tuple, or a reference to one: their parts have no names where the
//! function is called. Closures are exempt, as iterators give them pairs, and so are functions of a
//! trait for a type (`impl … for …`), whose signature is the trait's.

use proc_macro2::Delimiter;

use super::syntax::Token;

/// A parameter's function and line.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct TupleParameter {
    pub(super) function: String,
    pub(super) line: usize,
}

/// The tuple parameters of all functions in these tokens.
pub(super) fn tuples(tokens: &[Token]) -> Vec<TupleParameter> {
    let mut found = Vec::new();
    find(tokens, &mut found);
    found
}

fn find(tokens: &[Token], found: &mut Vec<TupleParameter>) {
    let mut is_trait_impl = false;
    for (idx, token) in tokens.iter().enumerate() {
        let before = idx.checked_sub(1).map(|idx| &tokens[idx]);
        match token {
            Token::Word { text, .. } if text == "impl" && before.is_none_or(begins_item) => {
                is_trait_impl = implements_trait(&tokens[idx..]);
            }
            Token::Word { text, .. } if text == "fn" => {
                if let Some(Token::Word { text, line }) = tokens.get(idx + 1) {
                    let num_tuples = parameters(&tokens[idx + 2..])
                        .map_or(0, |it| separated(it).filter(|it| is_tuple(it)).count());
                    let function = text.clone();
                    found.extend(
                        (0..num_tuples)
                            .map(|_| TupleParameter { function: function.clone(), line: *line }),
                    );
                }
            }
            Token::Group(Delimiter::Brace, inner) if is_trait_impl => {
                find_in_trait_impl(inner, found);
                is_trait_impl = false;
            }
            Token::Group(_, inner) => find(inner, found),
            _ => {}
        }
    }
}

/// Searches the bodies of a trait's functions, which may hold functions of their own.
fn find_in_trait_impl(tokens: &[Token], found: &mut Vec<TupleParameter>) {
    tokens.iter().filter_map(|it| it.group(Delimiter::Brace)).for_each(|body| find(body, found));
}

/// Whether an item can begin after this token; elsewhere `impl` is a type.
fn begins_item(before: &Token) -> bool {
    before.is_mark(';')
        || before.is_word("unsafe")
        || matches!(before, Token::Group(Delimiter::Brace | Delimiter::Bracket, _))
}

/// Whether an `impl` names a trait and a type. `for` after `:` or `+` begins a bound, as in
/// `F: for<'a> Fn(&'a str)`.
fn implements_trait(tokens: &[Token]) -> bool {
    let head: Vec<&Token> =
        tokens.iter().take_while(|it| it.group(Delimiter::Brace).is_none()).collect();
    let joins = |before: &Token| !before.is_mark(':') && !before.is_mark('+');
    head.windows(2).any(|pair| joins(pair[0]) && pair[1].is_word("for"))
}

/// A function's parameters: the parentheses after its name and generics.
fn parameters(tokens: &[Token]) -> Option<&[Token]> {
    let end = if tokens.first()?.is_mark('<') { closing_angle(tokens)? + 1 } else { 0 };
    tokens.get(end)?.group(Delimiter::Parenthesis)
}

/// The position of the `>` that closes the `<` with which tokens begin.
fn closing_angle(tokens: &[Token]) -> Option<usize> {
    let mut depth = 0_usize;
    for (idx, token) in tokens.iter().enumerate() {
        let is_arrow = idx.checked_sub(1).is_some_and(|before| tokens[before].is_mark('-'));
        if token.is_mark('<') {
            depth += 1;
        } else if token.is_mark('>') && !is_arrow {
            depth -= 1;
            if depth == 0 {
                return Some(idx);
            }
        }
    }
    None
}

/// Splits at the commas outside of angle brackets.
fn separated(tokens: &[Token]) -> impl Iterator<Item = &[Token]> {
    let (mut depth, mut before_is_minus) = (0_usize, false);
    tokens.split(move |token| {
        if token.is_mark('<') {
            depth += 1;
        } else if token.is_mark('>') && !before_is_minus {
            depth = depth.saturating_sub(1);
        }
        before_is_minus = token.is_mark('-');
        token.is_mark(',') && depth == 0
    })
}

/// Whether a parameter's type, after its pattern and references, is a tuple of two or more.
fn is_tuple(parameter: &[Token]) -> bool {
    // A pattern can have a path, with `::`.
    let is_colon = |idx: usize| parameter.get(idx).is_some_and(|it| it.is_mark(':'));
    let ends_pattern =
        |&idx: &usize| is_colon(idx) && !is_colon(idx + 1) && !(0 < idx && is_colon(idx - 1));
    let Some(colon) = (0..parameter.len()).find(ends_pattern) else { return false };
    let mut of_type = &parameter[colon + 1..];
    loop {
        of_type = match of_type {
            [mark, rest @ ..] if mark.is_mark('&') => rest,
            [mark, Token::Word { .. }, rest @ ..] if mark.is_mark('\'') => rest,
            [word, rest @ ..] if word.is_word("mut") => rest,
            _ => break,
        };
    }
    match of_type {
        [Token::Group(Delimiter::Parenthesis, inner)] => {
            1 < separated(inner).filter(|it| !it.is_empty()).count()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::syntax::parse;
    use super::*;

    fn functions(text: &str) -> Vec<String> {
        tuples(&parse(text).unwrap()).into_iter().map(|it| it.function).collect()
    }

    #[test]
    fn tuples_are_found_behind_patterns_generics_and_references() {
        let text = "fn a((x, y): (u8, u8)) {} fn b<F: Fn(u8) -> u8>(f: F, p: &'static mut (u8, [u8; 2])) {}
            impl S { fn c(&self, one: (u8, u8), two: &(u8, u8)) { fn d(p: (u8, u8),) {} } }
            trait T { fn e(&self, p: (Vec<(u8, u8)>, u8)); }";
        assert_eq!(functions(text), ["a", "b", "c", "c", "d", "e"]);
    }

    #[test]
    fn what_is_no_tuple_is_not_found() {
        let text =
            "fn a(list: &[(u8, u8)], f: impl Fn((u8, u8)), unit: (), one: (HashMap<u8, u8>)) {}
            fn b(std::net::Ip(x): std::net::Ip) -> (u8, u8) { list.map(|(a, b): (u8, u8)| a) }
            impl<F: for<'a> Fn(&'a u8)> From<(u8, F)> for S { fn from(pair: (u8, F)) -> Self { S } }
            #[cfg(test)] mod tests { fn c(pair: (u8, u8)) {} }
            type F = fn((u8, u8));";
        assert_eq!(functions(text), Vec::<String>::new());
    }
}
