//! Where each machine has the model that is to be served, asked before anything is loaded.

use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use jackalope_cluster::exchange::{ExchangeError, FoundFiles};
use jackalope_cluster::hostfile::Host;
use jackalope_cluster::models::FilePath;
use jackalope_cluster::models::files;
use jackalope_cluster::nodes::{self, Node, Nodes};

use super::Located;

/// A file that ranks read, and its size.
type Sizes = Vec<(FilePath, u64)>;

/// By node: the directory of the model there. A machine may have it elsewhere, but what ranks read must
/// have the sizes that it has here. What was asked for by name is looked for by name, then at the same
/// path; what was asked for by its directory, the other way round.
///
/// # Errors
/// Every machine that lacks the model or has another one of that name.
pub(crate) async fn model_dirs(
    nodes: &Arc<Nodes>,
    hosts: &[Host],
    model: &Located,
) -> anyhow::Result<Vec<String>> {
    let path = model.dir.to_str().context("the model's path is not UTF-8")?.to_owned();
    let listed = files::list(&model.dir)?.into_iter().map(|file| (file.path, file.bytes)).collect();
    let wanted = read_by_ranks(listed);
    let name = model.name.clone();
    let names = match model.by_name {
        true => [name.clone(), path.clone()],
        false => [path.clone(), name.clone()],
    };
    let (machines, _) = nodes::machines(hosts);
    let nodes = Arc::clone(nodes);
    let work = move || {
        let ask = |(machine, node): (&Host, &Node)| match machine.is_local() {
            true => Ok(path.clone()),
            false => {
                let mut client = node.agent.library().map_err(|err| err.to_string())?;
                dir_on(machine, &names, &wanted, &mut |name| client.find(name))
            }
        };
        let found: Vec<Result<String, String>> = std::thread::scope(|scope| {
            let pairs = machines.iter().zip(&nodes.nodes);
            let threads: Vec<_> = pairs.map(|pair| scope.spawn(move || ask(pair))).collect();
            threads.into_iter().map(|it| it.join().expect("it does not panic")).collect()
        });
        let (mut dirs, mut problems) = (Vec::new(), Vec::new());
        for found in found {
            match found {
                Ok(dir) => dirs.push(dir),
                Err(problem) => problems.push(problem),
            }
        }
        if !problems.is_empty() {
            bail!("{}\nhint: jackalope models sync {name} --hosts …", problems.join("\n"));
        }
        ensure!(dirs.len() == nodes.nodes.len(), "a machine did not answer");
        Ok(dirs)
    };
    tokio::task::spawn_blocking(work).await?
}

fn read_by_ranks(files: Sizes) -> Sizes {
    let is_read =
        |path: &str| path == "config.json" || path.ends_with(".safetensors") && !path.contains('/');
    files.into_iter().filter(|(path, _)| is_read(path.as_str())).collect()
}

/// The directory on a machine, or what is wrong. The first name that means something there decides.
fn dir_on(
    machine: &Host,
    names: &[String],
    wanted: &Sizes,
    find: &mut dyn FnMut(&str) -> Result<FoundFiles, ExchangeError>,
) -> Result<String, String> {
    let host = machine.name();
    for name in names {
        match find(name) {
            Ok(found) => match difference(wanted, &found) {
                None => return Ok(found.dir),
                Some(other) => {
                    return Err(format!("{host} has another {name} in {}: {other}", found.dir));
                }
            },
            Err(ExchangeError::Refused { .. }) => {}
            Err(err) => return Err(err.to_string()),
        }
    }
    Err(format!("{host} has no {}", names.join(" and nothing at ")))
}

fn difference(wanted: &Sizes, found: &FoundFiles) -> Option<String> {
    let found = read_by_ranks(found.files.clone());
    let size = |files: &Sizes, path: &FilePath| {
        files.iter().find(|(it, _)| it == path).map(|(_, bytes)| *bytes)
    };
    let missing_or_other = wanted.iter().find_map(|(path, bytes)| match size(&found, path) {
        None => Some(format!("{path} is missing")),
        Some(found) if found != *bytes => {
            Some(format!("{path} has {found} bytes there and {bytes} here"))
        }
        Some(_) => None,
    });
    let extra = || found.iter().find(|(path, _)| size(wanted, path).is_none());
    missing_or_other.or_else(|| extra().map(|(path, _)| format!("{path} is not part of it here")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, u64)]) -> Sizes {
        list.iter().map(|(path, bytes)| (path.parse().unwrap(), *bytes)).collect()
    }

    #[test]
    fn only_what_ranks_read_must_be_the_same() {
        let wanted =
            read_by_ranks(files(&[("config.json", 3), ("m.safetensors", 9), ("README", 1)]));
        let compare = |there: &[(&str, u64)]| {
            let found = FoundFiles {
                name: "m".to_owned(),
                commit: None,
                dir: "/m".to_owned(),
                files: files(there),
            };
            difference(&wanted, &found)
        };
        assert_eq!(compare(&[("config.json", 3), ("m.safetensors", 9), ("README", 2)]), None);
        let told = |there| compare(there).unwrap();
        assert_eq!(told(&[("config.json", 3)]), "m.safetensors is missing");
        let other = told(&[("config.json", 3), ("m.safetensors", 8)]);
        assert_eq!(other, "m.safetensors has 8 bytes there and 9 here");
        let host = Host { ssh: "mac2".to_owned(), ..Host::default() };
        let names = ["o/m".to_owned(), "/m".to_owned()];
        let refused = |host: &str| {
            let (host, reason) = (host.to_owned(), String::new());
            Err(ExchangeError::Refused { host, reason })
        };
        let missing = dir_on(&host, &names, &wanted, &mut |_| refused("mac2")).unwrap_err();
        assert_eq!(missing, "mac2 has no o/m and nothing at /m");
        let more = told(&[("config.json", 3), ("m.safetensors", 9), ("n.safetensors", 1)]);
        assert_eq!(more, "n.safetensors is not part of it here");
    }
}
