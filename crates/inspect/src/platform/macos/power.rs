//! Parses `pmset` and the state of the application firewall.

use crate::report::Power;

/// Parses `pmset -g` and `pmset -g assertions`.
pub(super) fn power(pmset: &str, assertions: &str) -> Power {
    let minutes = |key: &str| {
        let line = pmset.lines().find_map(|line| line.trim().strip_prefix(key))?;
        line.strip_prefix(char::is_whitespace)?.split_whitespace().next()?.parse().ok()
    };
    Power {
        sleep_minutes: minutes("sleep"),
        display_sleep_minutes: minutes("displaysleep"),
        awake_by: holders(assertions, &["PreventUserIdleSystemSleep", "PreventSystemSleep"]),
        display_awake_by: holders(assertions, &["PreventUserIdleDisplaySleep"]),
    }
}

/// Parses lines such as `pid 42(caffeinate): [0x…] 00:13:25 PreventUserIdleSystemSleep named: "…"`.
fn holders(assertions: &str, kinds: &[&str]) -> Vec<String> {
    let lines = assertions.lines().filter_map(|line| {
        let rest = line.trim().strip_prefix("pid ")?;
        let program = rest.split_once('(')?.1.split_once(')')?.0;
        let holds = rest.split_whitespace().any(|word| kinds.contains(&word));
        holds.then(|| program.to_owned())
    });
    let mut programs: Vec<String> = lines.collect();
    programs.sort();
    programs.dedup();
    programs
}

/// Parses `Firewall is enabled. (State = 1)`; state 2 blocks everything.
pub(super) fn firewall(text: &str) -> Option<bool> {
    let state = text.split("State = ").nth(1)?;
    match state.chars().next()? {
        '0' => Some(false),
        '1' | '2' => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PMSET: &str = include_str!("../../../tests/recorded/pmset-g.txt");
    const ASSERTIONS: &str = include_str!("../../../tests/recorded/pmset-g-assertions.txt");

    #[test]
    fn sleep_and_what_holds_it_off_are_read() {
        let found = power(PMSET, ASSERTIONS);
        assert_eq!(found.sleep_minutes, Some(1));
        assert_eq!(found.display_sleep_minutes, Some(10));
        assert_eq!(found.awake_by, ["caffeinate", "powerd"]);
        assert_eq!(found.display_awake_by, [] as [&str; 0]);
    }

    #[test]
    fn a_firewall_has_three_states() {
        assert_eq!(firewall("Firewall is disabled. (State = 0)"), Some(false));
        assert_eq!(firewall("Firewall is enabled. (State = 1)"), Some(true));
        let text = "Firewall is blocking all non-essential incoming connections. (State = 2)";
        assert_eq!(firewall(text), Some(true));
        assert_eq!(firewall("?"), None);
    }
}
