//! `jackalope` without arguments in a terminal: the state of this machine, and what to do next.

/// Number of names of models and machines that are shown.
const NAMES_SHOWN: usize = 3;

/// A model to download where there is none: small, and good enough to talk to.
const SUGGESTED_MODEL: &str = "mlx-community/Qwen3-0.6B-4bit";

/// The state of this machine.
#[derive(Clone, Debug, Default)]
pub struct Welcome {
    /// Version of the program.
    pub version: String,
    /// URL of the running server, and its default model.
    pub server: Option<ServerHere>,
    /// Whether the last server can be started again with `start`'s recorded arguments.
    pub has_last_start: bool,
    /// Names of the complete models that can be loaded.
    pub models: Vec<String>,
    /// Names of other machines that this one commands.
    pub machines: Vec<String>,
}

/// The running server of this machine.
#[derive(Clone, Debug)]
pub struct ServerHere {
    /// URL of the server.
    pub url: String,
    /// Name of the server's default model.
    pub model: String,
}

impl Welcome {
    /// Returns at most ten lines, none longer than `width` columns.
    pub fn lines(&self, width: usize) -> Vec<String> {
        let mut lines = vec![
            format!("Jackalope {}: several machines, one LLM endpoint", self.version),
            match &self.server {
                Some(ServerHere { url, model }) => format!("  server    {url} serves {model}"),
                None => "  server    none is running".to_owned(),
            },
            format!("  models    {}", listed(&self.models, "none on this machine")),
            format!("  machines  {}", listed(&self.machines, "only this one")),
            "Next:".to_owned(),
        ];
        let next = self.next();
        let column = next.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
        let next = next.into_iter();
        lines.extend(next.map(|(command, about)| format!("  {command:<column$}  {about}")));
        lines.iter().map(|line| cut(line, width)).collect()
    }

    /// Returns up to five commands, each with a few words about it.
    fn next(&self) -> Vec<(String, &'static str)> {
        let mut next: Vec<(String, &'static str)> = Vec::new();
        if let Some(ServerHere { url, .. }) = &self.server {
            next.push(("jackalope chat".to_owned(), "talk to the model"));
            next.push((url.clone(), "the web page, in a browser"));
            next.push(("jackalope top".to_owned(), "speed, queue and ranks"));
        } else {
            match (self.has_last_start, self.models.first()) {
                (true, _) => {
                    next.push(("jackalope restart".to_owned(), "start the last server again"))
                }
                (false, Some(model)) => {
                    next.push((format!("jackalope serve --model {model}"), "serve it over HTTP"));
                }
                (false, None) => {
                    next.push((format!("jackalope pull {SUGGESTED_MODEL}"), "download a model"));
                }
            }
            next.push(("jackalope demo".to_owned(), "two ranks and a tiny model"));
        }
        if self.machines.is_empty() {
            next.push(("jackalope bootstrap HOST".to_owned(), "add a machine over SSH"));
        } else {
            next.push(("jackalope doctor --hosts NAMES".to_owned(), "check the machines"));
        }
        next.push(("jackalope --help".to_owned(), "all commands"));
        next
    }
}

/// Returns the first names and the number of the others.
fn listed(names: &[String], none: &str) -> String {
    let shown = names.iter().take(NAMES_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(NAMES_SHOWN) {
        None | Some(0) if names.is_empty() => none.to_owned(),
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

/// Cuts a line to a number of characters and marks the cut.
fn cut(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let kept: String = line.chars().take(width.saturating_sub(1)).collect();
    kept.trim_end().to_owned() + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn ten_lines_say_what_is_here_and_what_to_do() {
        let empty = Welcome { version: "1".to_owned(), ..Welcome::default() };
        let lines = empty.lines(80);
        assert!(lines.len() <= 10, "{lines:#?}");
        let text = lines.join("\n");
        for part in ["none is running", "none on this machine", "only this one", "jackalope demo"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let models = Welcome { models: names("a/b c/d e/f g/h i/j"), ..empty.clone() };
        let text = models.lines(80).join("\n");
        assert!(text.contains("a/b, c/d, e/f and 2 more"), "{text}");
        assert!(text.contains("jackalope serve --model a/b"), "{text}");
        let again = Welcome { has_last_start: true, machines: names("mac1 mac2"), ..models };
        let text = again.lines(80).join("\n");
        assert!(text.contains("jackalope restart") && text.contains("mac1, mac2"), "{text}");
        let server = ServerHere { url: "http://h:1".to_owned(), model: "a/b".to_owned() };
        let serving = Welcome { server: Some(server), ..again };
        let lines = serving.lines(80);
        assert!(lines.len() <= 10, "{lines:#?}");
        assert!(lines[1].contains("http://h:1 serves a/b"), "{lines:#?}");
        assert!(lines.join("\n").contains("jackalope chat"), "{lines:#?}");
    }

    #[test]
    fn narrow_terminals_get_cut_lines() {
        let lines = Welcome::default().lines(20);
        assert!(lines.iter().all(|it| it.chars().count() <= 20), "{lines:#?}");
        assert!(lines.iter().any(|it| it.ends_with('…')), "{lines:#?}");
    }
}
