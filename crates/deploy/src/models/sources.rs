//! Locates the model to be served on each machine, before anything is loaded.

use std::path::Path;
use std::sync::Arc;

use jackalope_fleet::hostfile::Host;
use jackalope_fleet::nodes::{self, Node, Nodes};
use jackalope_fleet::trust::Credentials;
use jackalope_protocol::grant::Granter;
use jackalope_protocol::{ExpectedContent, FilePath, FileState, ModelSource, counted};
use jackalope_store::content::{first_difference, is_read_by_ranks};
use jackalope_store::exchange::{ExchangeError, FoundFiles};
use jackalope_store::files;
use thiserror::Error;

use super::Located;
use super::member::{Member, library_of};
use crate::content::{HashingWatch, hashing};
use crate::context::LocalContext;
use crate::error::{DeployError, SourceError};

/// Files that ranks read, with their sizes.
type Sizes = Vec<(FilePath, u64)>;

/// Place from which the ranks of a machine read the model.
#[derive(Clone, Debug)]
pub(crate) struct ModelPlace {
    /// Directory of the model, on another machine if `source` is set.
    pub(crate) dir: String,
    /// The other machine from which the model is read, if any.
    pub(crate) source: Option<ModelSource>,
    /// Creates the grants with which ranks may read from `source`; `None` without a source.
    pub(crate) granter: Option<Granter>,
    /// States of the files in `dir`, whose content equals that of the model on this machine.
    pub(crate) states: Vec<FileState>,
}

/// Directory of a model on a machine whose content equals that of the model on this machine.
#[derive(Clone, Debug)]
struct SameModel {
    dir: String,
    states: Vec<FileState>,
}

/// The machines that are to compute a model.
pub(crate) struct ModelMachines<'a> {
    pub(crate) nodes: &'a Arc<Nodes>,
    pub(crate) hosts: &'a [Host],
    pub(crate) model: &'a Located,
    /// Machine from which machines that lack the model may read it.
    pub(crate) models_from: Option<&'a str>,
    /// Port on which this machine's library listens for them; 0 lets the system choose.
    pub(crate) copy_port: u16,
}

/// Returns, for each node, where its ranks read the model, and the content that they must find. A
/// machine may keep the model in another directory, but the bytes that ranks read must be equal. A
/// model given by name is looked up by name first, then at the same path; a model given by its
/// directory, in the reverse order.
///
/// # Errors
/// Names every machine that has a different model of that name, or lacks the model while there is
/// no machine to read it from.
pub(crate) async fn places(
    machines: ModelMachines<'_>,
    context: &LocalContext,
    ours: &Credentials,
) -> Result<(Vec<ModelPlace>, ExpectedContent), DeployError> {
    let ModelMachines { nodes, hosts, model, models_from, copy_port } = machines;
    let (machines, _) = nodes::machines(hosts);
    assert_eq!(machines.len(), nodes.nodes.len(), "every machine has an agent");
    let (own, found) = {
        let (nodes, machines, model) = (Arc::clone(nodes), machines.clone(), model.clone());
        let trees_dir = context.trees_dir();
        hashing(context, move |watch| ask(&nodes, &machines, &model, trees_dir.as_deref(), watch))
            .await?
    };
    let problems: Vec<String> = found
        .iter()
        .filter_map(|it| it.as_ref().err())
        .filter(|it| models_from.is_none() || matches!(it, Absence::Problem(_)))
        .map(ToString::to_string)
        .collect();
    if !problems.is_empty() {
        return Err(SourceError::Absent { problems, model: model.name.clone() }.into());
    }
    let member = |at: usize| Member::there(machines[at].clone(), &nodes.nodes[at]);
    let source = match models_from.filter(|_| found.iter().any(Result::is_err)) {
        None => None,
        Some(from) => match machines.iter().position(|it| is_called(it, from)) {
            Some(at) => {
                let dir = found[at].as_ref();
                let dir = dir.map_err(|err| SourceError::Lacks {
                    from: from.to_owned(),
                    reason: err.to_string(),
                });
                Some((member(at), dir?.clone()))
            }
            None if is_this_machine(from) => {
                let others: Vec<Member> = (0..machines.len()).map(member).collect();
                let here = SameModel { dir: text(&model.dir)?, states: own.states.clone() };
                Some((Member::here(None, context, ours, &others, copy_port)?, here))
            }
            None => return Err(SourceError::Unknown { from: from.to_owned() }.into()),
        },
    };
    let place = |(at, found): (usize, &Result<SameModel, Absence>)| match (found, &source) {
        (Ok(SameModel { dir, states }), _) => {
            ModelPlace { dir: dir.clone(), source: None, granter: None, states: states.clone() }
        }
        (Err(_), Some((source, SameModel { dir, states }))) => {
            let addrs = source.addrs_from(&member(at));
            let granter = Granter::new(ours, source.key, dir);
            let source = ModelSource { host: source.host.name(), addrs, grant: granter.grant() };
            let (source, granter) = (Some(source), Some(granter));
            ModelPlace { dir: dir.clone(), source, granter, states: states.clone() }
        }
        (Err(_), None) => unreachable!("who lacks it is a problem without a source"),
    };
    Ok((found.iter().enumerate().map(place).collect(), own))
}

/// Returns the content of the model on this machine, and for each node the model's directory there.
/// Every machine hashes its own copy unless the hashes are cached. The outer error is one of this
/// machine.
fn ask(
    nodes: &Nodes,
    machines: &[Host],
    model: &Located,
    trees_dir: Option<&Path>,
    watch: &HashingWatch,
) -> Result<(ExpectedContent, Vec<Result<SameModel, Absence>>), DeployError> {
    let path = text(&model.dir)?;
    let listed = files::list(&model.dir)?.into_iter().map(|file| (file.path, file.bytes)).collect();
    let wanted = read_by_ranks(listed);
    let own_bytes: u64 = wanted.iter().map(|(_, bytes)| bytes).sum();
    let num_copies = 1 + machines.iter().filter(|it| !it.is_local()).count() as u64;
    watch.expect(own_bytes * num_copies);
    let names = if model.by_name {
        [model.name.clone(), path.clone()]
    } else {
        [path.clone(), model.name.clone()]
    };
    let ask_one = |(machine, node): (&Host, &Node)| {
        if machine.is_local() {
            return Ok((path.clone(), None));
        }
        let problem = |err: ExchangeError| Absence::Problem(err.to_string());
        let mut client = library_of(&node.agent).map_err(problem)?;
        let dir = dir_on(machine, &names, &wanted, &mut |name| client.find(name))?;
        let content = client.content(&dir, &|num_bytes| watch.add(num_bytes)).map_err(problem)?;
        Ok((dir, Some(content)))
    };
    let (own, found) = std::thread::scope(|scope| {
        let pairs = machines.iter().zip(&nodes.nodes);
        let threads: Vec<_> = pairs.map(|pair| scope.spawn(move || ask_one(pair))).collect();
        let own = watch.hash(&model.dir, trees_dir);
        let found = threads.into_iter().map(|it| it.join().expect("it does not panic"));
        (own, found.collect::<Vec<_>>())
    });
    let own = own?;
    let compare = |(machine, found): (&Host, Result<_, Absence>)| {
        let (dir, content): (String, Option<ExpectedContent>) = found?;
        let Some(content) = content else {
            return Ok(SameModel { dir, states: own.states.clone() });
        };
        // Ranks on that machine must find this machine's content, whatever the agent reported.
        match first_difference(&own.tree, &content.tree, &model.dir) {
            None => Ok(SameModel { dir, states: content.states }),
            Some(what) => {
                let (host, name) = (machine.name(), &model.name);
                Err(Absence::Problem(format!("{host} has another {name} in {dir}: {what}")))
            }
        }
    };
    let compared = machines.iter().zip(found).map(compare).collect();
    Ok((own, compared))
}

fn text(path: &Path) -> Result<String, DeployError> {
    Ok(path.to_str().ok_or(DeployError::ModelPath)?.to_owned())
}

/// Whether `word` means the machine that this process runs on.
fn is_this_machine(word: &str) -> bool {
    Host { ssh: word.to_owned(), ..Host::default() }.is_local()
}

/// Whether `word` means `machine`, an entry of the hostfile.
fn is_called(machine: &Host, word: &str) -> bool {
    machine.name() == word || machine.is_local() && is_this_machine(word)
}

/// Why a machine's ranks have no directory to read.
#[derive(Debug, Error)]
enum Absence {
    /// The machine does not have the model.
    #[error("{0}")]
    Missing(String),
    /// The machine has a different model, or does not answer.
    #[error("{0}")]
    Problem(String),
}

fn read_by_ranks(files: Sizes) -> Sizes {
    let is_weights = |path: &str| path.ends_with(".safetensors") && !path.contains('/');
    let is_read = |path: &str| is_read_by_ranks(path) || is_weights(path);
    files.into_iter().filter(|(path, _)| is_read(path.as_str())).collect()
}

/// Returns the directory of the model on a machine. The model is looked up under each of `names` in
/// turn; the first one that exists there decides, and fails if its files are not those of `wanted`.
fn dir_on(
    machine: &Host,
    names: &[String],
    wanted: &Sizes,
    find: &mut dyn FnMut(&str) -> Result<FoundFiles, ExchangeError>,
) -> Result<String, Absence> {
    let host = machine.name();
    for name in names {
        match find(name) {
            Ok(found) => match difference(wanted, &found) {
                None => return Ok(found.dir),
                Some(other) => {
                    let dir = found.dir;
                    return Err(Absence::Problem(format!(
                        "{host} has another {name} in {dir}: {other}"
                    )));
                }
            },
            Err(ExchangeError::Refused { .. }) => {}
            Err(err) => return Err(Absence::Problem(err.to_string())),
        }
    }
    Err(Absence::Missing(format!("{host} has no {}", names.join(" and nothing at "))))
}

fn difference(wanted: &Sizes, found: &FoundFiles) -> Option<String> {
    let found = read_by_ranks(found.files.clone());
    let size = |files: &Sizes, path: &FilePath| {
        files.iter().find(|(it, _)| it == path).map(|(_, bytes)| *bytes)
    };
    let missing_or_other = wanted.iter().find_map(|(path, bytes)| match size(&found, path) {
        None => Some(format!("{path} is missing")),
        Some(found) if found != *bytes => {
            Some(format!("{path} has {} there and {bytes} here", counted(found, "byte")))
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
        let reason = |there| compare(there).unwrap();
        assert_eq!(reason(&[("config.json", 3)]), "m.safetensors is missing");
        let other = reason(&[("config.json", 3), ("m.safetensors", 8)]);
        assert_eq!(other, "m.safetensors has 8 bytes there and 9 here");
        let host = Host { ssh: "mac2".to_owned(), ..Host::default() };
        let names = ["o/m".to_owned(), "/m".to_owned()];
        let refused = |host: &str| {
            let (host, reason) = (host.to_owned(), String::new());
            Err(ExchangeError::Refused { host, reason })
        };
        let missing = dir_on(&host, &names, &wanted, &mut |_| refused("mac2")).unwrap_err();
        assert_eq!(missing.to_string(), "mac2 has no o/m and nothing at /m");
        let more = reason(&[("config.json", 3), ("m.safetensors", 9), ("n.safetensors", 1)]);
        assert_eq!(more, "n.safetensors is not part of it here");
    }
}
