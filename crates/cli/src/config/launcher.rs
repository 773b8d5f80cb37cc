//! `jackalope distributed-launcher`: translates the arguments of vllm-mlx's
//! `python -m vllm_mlx.distributed_launcher` to arguments of `serve`.

use anyhow::{bail, ensure};

/// Accepted spellings of the command.
const NAMES: [&str; 2] = ["distributed-launcher", "distributed_launcher"];

/// Returns the equivalent arguments of `serve`; the words of other commands are returned unchanged.
///
/// `[--backend jaccl|ring|any] [-n|--num-ranks N] [--hostfile F] [--hosts H …] [--env K=V …] -- SERVE`.
/// Without `--backend`, and with `any`, the hostfile decides, or else Jackalope's own transport is
/// used.
pub(super) fn as_serve(words: Vec<String>) -> anyhow::Result<Vec<String>> {
    if !words.get(1).is_some_and(|it| NAMES.contains(&it.as_str())) {
        return Ok(words);
    }
    let mut serve = vec![words[0].clone(), "serve".to_owned()];
    let mut rest = words.into_iter().skip(2).peekable();
    let mut has_ranks = false;
    while let Some(word) = rest.next() {
        let (flag, joined) = match word.split_once('=') {
            Some((flag, value)) if word.starts_with("--") => {
                (flag.to_owned(), Some(value.to_owned()))
            }
            _ => (word, None),
        };
        let mut value = || match joined.clone().or_else(|| rest.next_if(|it| it != "--")) {
            Some(value) => Ok(value),
            None => bail!("`{flag}` needs a value"),
        };
        let mut push = |name: &str, value: String| serve.extend([name.to_owned(), value]);
        match flag.as_str() {
            "--" => break,
            "-h" | "--help" => {
                serve.push(flag);
                return Ok(serve);
            }
            "--backend" => match value()?.as_str() {
                "any" => {}
                backend => push("--backend", backend.to_owned()),
            },
            "-n" | "--num-ranks" => (has_ranks, _) = (true, push("--ranks", value()?)),
            "--hostfile" => (has_ranks, _) = (true, push("--hosts", value()?)),
            "--hosts" => {
                let mut hosts = vec![value()?];
                while let Some(host) = rest.next_if(|it| !it.starts_with('-')) {
                    hosts.push(host);
                }
                (has_ranks, _) = (true, push("--hosts", hosts.join(",")));
            }
            "--env" => push("--env", value()?),
            _ => bail!(
                "`{flag}` is no argument of the launcher\nhint: the server's own arguments follow `--`"
            ),
        }
    }
    ensure!(has_ranks, "no ranks are given\nhint: give `-n N`, `--hostfile FILE` or `--hosts a b`");
    // The rest are the server's own arguments; `--distributed`, which vllm-mlx needs to be one of
    // several, has no meaning here.
    serve.extend(rest.filter(|it| it != "--distributed"));
    Ok(serve)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(text: &str) -> anyhow::Result<String> {
        let words = text.split(' ').map(str::to_owned).collect();
        Ok(as_serve(words)?.join(" "))
    }

    #[test]
    fn the_launchers_grammar_is_that_of_serve_in_other_words() {
        for (typed, wanted) in [
            ("j serve --ranks 2", "j serve --ranks 2"),
            (
                "j distributed-launcher -n 2 -- --model M --port 8000 --distributed",
                "j serve --ranks 2 --model M --port 8000",
            ),
            (
                "j distributed_launcher --backend jaccl --hostfile f.json --env A=1 --env B=2 -- --model M",
                "j serve --backend jaccl --hosts f.json --env A=1 --env B=2 --model M",
            ),
            (
                "j distributed-launcher --backend=any --hosts a b c --env=A=1 -- --model M",
                "j serve --hosts a,b,c --env A=1 --model M",
            ),
            ("j distributed-launcher --help", "j serve --help"),
        ] {
            assert_eq!(rewritten(typed).unwrap(), wanted);
        }
    }

    #[test]
    fn what_it_does_not_know_is_refused_with_a_hint() {
        for (typed, said) in [
            ("j distributed-launcher -- --model M", "no ranks are given"),
            ("j distributed-launcher -n -- --model M", "`-n` needs a value"),
            ("j distributed-launcher --model M", "`--model` is no argument"),
        ] {
            let err = rewritten(typed).unwrap_err().to_string();
            assert!(err.contains(said), "{typed}: {err}");
        }
    }
}
