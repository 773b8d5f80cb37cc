//! Checks the values of variables and reports invalid ones.

use anyhow::{Context, bail, ensure};

use super::Origin;
use super::table::{Rule, Variable};

/// Maximum length of a host name.
const HOST_BYTES_MAX: usize = 253;

impl Variable {
    /// Checks a value and returns its normal form.
    ///
    /// # Errors
    /// If the value violates the variable's rule.
    pub(super) fn check(&self, value: &str, origin: &Origin) -> anyhow::Result<String> {
        let value = value.trim();
        let checked = self.rule.check(value).with_context(|| format!("{origin} is `{value}`"));
        checked.map(|()| self.rule.normal(value)).map_err(|err| {
            let hint = format!("hint: for example {}={}", self.name, self.example());
            anyhow::anyhow!("{err:#}\n{hint}")
        })
    }

    /// Returns a warning for a value that passes the check but is unknown and therefore left out.
    pub(super) fn warning(&self, value: &str) -> Option<String> {
        let Rule::Known(known) = self.rule else { return None };
        (!known.contains(&value))
            .then(|| format!("it is ignored; known values are {}", known.join(", ")))
    }

    fn example(&self) -> &str {
        match (self.default, self.rule) {
            ("", Rule::Port) => "8080",
            ("", Rule::Whole { .. } | Rule::Decimal { .. }) => "1",
            ("", _) => "…",
            (default, _) => default,
        }
    }
}

impl Rule {
    fn check(self, value: &str) -> anyhow::Result<()> {
        match self {
            Rule::Text | Rule::Known(_) => Ok(()),
            Rule::Host => check_host(value),
            Rule::Names => names(value).iter().try_for_each(|it| check_host(it)),
            Rule::Port => match value.parse::<u16>() {
                Ok(1..) => Ok(()),
                _ => bail!("a port is a whole number from 1 to 65535"),
            },
            Rule::Whole { least, most } => match value.parse::<u64>() {
                Ok(it) if (least..=most).contains(&it) => Ok(()),
                _ if most == u64::MAX => bail!("it has to be a whole number from {least}"),
                _ => bail!("it has to be a whole number from {least} to {most}"),
            },
            Rule::Decimal { above, most } => match value.parse::<f64>() {
                Ok(it) if f64::from(above) < it && it <= f64::from(most) => Ok(()),
                _ => bail!("it has to be a number above {above} and at most {most}"),
            },
            Rule::YesNo => yes_or_no(value).context("it has to be 1 or 0, true or false").map(drop),
            Rule::OneOf(all) => {
                let is_one = all.iter().any(|it| it.eq_ignore_ascii_case(value));
                let near = all.iter().find(|it| is_near(it, &value.to_uppercase()));
                let near = near.map(|it| format!("; did you mean {it}?")).unwrap_or_default();
                ensure!(is_one, "it has to be one of {}{near}", all.join(", "));
                Ok(())
            }
        }
    }

    fn normal(self, value: &str) -> String {
        match self {
            Rule::Whole { .. } | Rule::Port => value.trim_start_matches('+').to_owned(),
            Rule::Names => names(value).join(","),
            _ => value.to_owned(),
        }
    }
}

fn check_host(value: &str) -> anyhow::Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:@[]%".contains(c);
    let is_host = !value.is_empty() && value.len() <= HOST_BYTES_MAX && value.chars().all(is_plain);
    ensure!(is_host && !value.starts_with('-'), "it has to name a machine or an address");
    Ok(())
}

/// Splits a comma-separated list; an empty text is an empty list.
pub(super) fn names(text: &str) -> Vec<String> {
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    if names == [""] { Vec::new() } else { names.into_iter().map(str::to_owned).collect() }
}

/// Parses a boolean in the spellings that programs use; `None` for anything else.
pub(super) fn yes_or_no(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Converts a Python log level to a filter of this program.
pub(super) fn log_filter(level: &str) -> &'static str {
    match level {
        "DEBUG" => "debug",
        "INFO" => "info",
        "WARNING" => "warn",
        _ => "error",
    }
}

/// Whether two texts differ by at most two changed, added or missing characters.
pub(super) fn is_near(a: &str, b: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let changed = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()] <= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_near_if_a_slip_lies_between() {
        for (a, b, expected) in [
            ("HTTP_PORT", "HTTP_PORT", true),
            ("HTTP_PORT", "HTP_PORT", true),
            ("HTTP_PORT", "HTTP_PROT", true),
            ("HTTP_PORT", "HTTPS_PORTS", true),
            ("HTTP_PORT", "CTRL_PORT", false),
            ("", "abc", false),
        ] {
            assert_eq!(is_near(a, b), expected, "{a} {b}");
            assert_eq!(is_near(b, a), expected, "{b} {a}");
        }
    }
}
