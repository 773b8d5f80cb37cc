//! `jackalope models check --hosts`: checks whether all machines have the same model.

use anyhow::{Context, bail, ensure};
use jackalope_console::output;
use jackalope_deploy::machines;
use jackalope_deploy::models::{find, library_of};
use jackalope_fleet::hostfile::Host;
use jackalope_fleet::nodes::{self, Node, Nodes};
use jackalope_protocol::ContentHash;
use jackalope_protocol::counted;
use jackalope_store::exchange::{FoundFiles, LibraryClient};
use jackalope_store::{Difference, FileEntry, HashCache, Hashing, Manifest, files};
use serde_json::json;

use crate::args::CheckArgs;
use crate::environment::Environment;

/// Answer of one machine.
struct Answer {
    host: String,
    /// Directory and files of the model, or the reason why there is none.
    found: Result<(String, Manifest), String>,
}

pub(crate) async fn run(args: CheckArgs, environment: &Environment) -> anyhow::Result<()> {
    let text = args.hosts.clone().context("`--hosts` names the machines")?;
    let (machines, _) = nodes::machines(&machines::hostfile(&text)?.hosts);
    let remote: Vec<Host> = machines.into_iter().filter(|host| !host.is_local()).collect();
    ensure!(!remote.is_empty(), "`{text}` names no other machine than this one");
    let config = machines::nodes_config(&args.reach.config(environment), &environment.local)?;
    let Nodes { nodes, .. } =
        machines::bring_up(remote, config, &environment.local.observer, machines::log_lines)
            .await?;
    let (stores, hashes_path) = (environment.stores(), environment.local.hashes_path());
    let here = find(&args.model, &stores).ok();
    let mut names = vec![args.model.to_string_lossy().into_owned()];
    names.extend(here.as_ref().map(|it| it.name.clone()));
    let work = move || {
        let own = here.map(|located| {
            let manifest = match args.hash {
                true => {
                    let mut known = hashes_path.as_deref().map(HashCache::load).unwrap_or_default();
                    Manifest::of_dir(&located.dir, &mut known, Hashing::new(&|_| ()))
                }
                false => sizes(&located.dir),
            };
            let path = located.dir.to_string_lossy().into_owned();
            let found = manifest.map(|it| (path, it)).map_err(|err| err.to_string());
            Answer { host: "this machine".to_owned(), found }
        });
        let asked = std::thread::scope(|scope| {
            let (names, hash) = (&names, args.hash);
            let ask = |node| scope.spawn(move || ask(node, names, hash));
            let threads: Vec<_> = nodes.iter().map(ask).collect();
            let join = |it: std::thread::ScopedJoinHandle<'_, Answer>| it.join();
            threads.into_iter().map(|it| join(it).expect("it does not panic")).collect::<Vec<_>>()
        });
        print_comparison(&args, own.into_iter().chain(asked).collect())
    };
    tokio::task::spawn_blocking(work).await?
}

/// Returns names and sizes as a manifest without meaningful hashes.
fn sizes(dir: &std::path::Path) -> Result<Manifest, jackalope_store::ManifestError> {
    let listed = files::list(dir)?.into_iter().map(|it| (it.path, it.bytes));
    without_hashes(listed)
}

fn without_hashes(
    files: impl Iterator<Item = (jackalope_protocol::FilePath, u64)>,
) -> Result<Manifest, jackalope_store::ManifestError> {
    let sha256 = ContentHash([0; 32]);
    Manifest::new(files.map(|(path, bytes)| FileEntry { path, bytes, sha256 }).collect())
}

fn ask(node: &Node, names: &[String], hash: bool) -> Answer {
    let host = node.agent.host().to_owned();
    let answer = |client: &mut LibraryClient| {
        let mut last = String::new();
        for name in names {
            match client.find(name) {
                Ok(FoundFiles { dir, files, .. }) => {
                    let manifest = if hash {
                        client.manifest(name, &|_| ()).map_err(|err| err.to_string())
                    } else {
                        without_hashes(files.into_iter()).map_err(|err| err.to_string())
                    };
                    return manifest.map(|manifest| (dir, manifest));
                }
                Err(err) => last = err.to_string(),
            }
        }
        Err(last)
    };
    let found = library_of(&node.agent).map_err(|err| err.to_string());
    Answer { found: found.and_then(|mut client| answer(&mut client)), host }
}

/// Compares all machines with the first that has the model, and prints the results.
fn print_comparison(args: &CheckArgs, answers: Vec<Answer>) -> anyhow::Result<()> {
    let reference = answers.iter().find_map(|it| it.found.as_ref().ok()).map(|it| it.1.clone());
    let model = args.model.display();
    let reference = reference.with_context(|| format!("no machine has {model}"))?;
    let mut num_bad = 0;
    let num_machines = answers.len();
    for Answer { host, found } in answers {
        let is_lack = |it: &Difference| !matches!(it, Difference::Extra { .. });
        let (path, problems) = match found {
            Ok((path, manifest)) => {
                let differences = reference.differences(&manifest);
                let lacking = differences.iter().filter(|it| is_lack(it));
                (Some(path), lacking.map(ToString::to_string).collect::<Vec<_>>())
            }
            Err(reason) => (None, vec![reason]),
        };
        num_bad += usize::from(!problems.is_empty());
        if args.json {
            output::line(json!({
                "host": host, "ok": problems.is_empty(), "path": path, "problems": problems,
            }))?;
        } else if problems.is_empty() {
            let read = if args.hash { "every byte" } else { "every size" };
            let path = path.unwrap_or_default();
            output::line(format_args!("{host}: {model} in {path}, {read} the same"))?;
        } else {
            output::line(format_args!("{host}: {}", problems.join("\n  ")))?;
        }
    }
    match num_bad {
        0 => Ok(()),
        _ => bail!(
            "{model} is not the same on {num_bad} of {}\n\
             hint: jackalope models sync {model} --hosts {}",
            counted(num_machines, "machine"),
            args.hosts.as_deref().unwrap_or_default()
        ),
    }
}
