//! Checks before any weights are fetched that this version can load the model: whether it knows the
//! architecture, and whether the repository holds the tensors that `config.json` implies.
//!
//! The names of the tensors are those of the index. Of a single weight file, and of files that the
//! index does not name, they are in the header, which is fetched alone and also has shapes and types.

use std::collections::BTreeMap;
use std::io::Read;

use jackalope_families::model_spec;
use jackalope_protocol::counted;
use jackalope_spec::{ModelSpec, TensorHeaders};
use serde_json::Value;
use ureq::http::StatusCode;

use super::choice::{RemoteFile, is_weights};
use super::error::{HubError, PullError};
use super::fetch::{Fetch, starts_at};
use super::retry::{Failure, Retries};
use super::{Counting, FileBytes, Pull};
use crate::Problem;
use crate::check::weights::{self, INDEX, INDEX_BYTES_MAX, TensorsByFile};
use crate::check::{CONFIG, CONFIG_BYTES_MAX, read_json};

/// Number of bytes that the first request for a header asks for; longer headers take another one.
const FIRST_BYTES: u64 = 256 << 10;

/// Why no header is known.
enum Cause {
    /// The file has none that can be read.
    Problem(Problem),
    /// It could not be fetched.
    Pull(PullError),
}

impl From<Problem> for Cause {
    fn from(problem: Problem) -> Cause {
        Cause::Problem(problem)
    }
}

/// The tensors of a repository, as far as they are known before its weights are fetched.
#[derive(Default)]
struct RemoteTensors {
    by_file: TensorsByFile,
    /// Tensors of the files whose headers were fetched.
    headers: BTreeMap<String, TensorHeaders>,
    problems: Vec<Problem>,
}

impl Pull {
    /// Fetches the configuration and the index, and checks whether this version can load the model,
    /// unless unsupported models were requested. Removes weight files from `files` that only predict
    /// several tokens at once. Returns the number of bytes of files that came over the network.
    ///
    /// # Errors
    /// If a file cannot be fetched, or this version cannot load the model.
    pub(super) fn preview(
        &self,
        files: &mut Vec<RemoteFile>,
        commit: &str,
    ) -> Result<u64, PullError> {
        if self.config.takes_unsupported {
            return Ok(0);
        }
        let Some((config, mut fetched_bytes)) =
            self.fetch_json(CONFIG, CONFIG_BYTES_MAX, files, commit)?
        else {
            return Ok(0);
        };
        let spec = model_spec(&config)
            .map_err(|source| PullError::Unsupported { repo: self.repo.clone(), source })?;
        let mut found = RemoteTensors::default();
        if let Some((index, bytes)) = self.fetch_json(INDEX, INDEX_BYTES_MAX, files, commit)? {
            fetched_bytes += bytes;
            found.by_file = weights::tensors_by_file(&index, &mut found.problems);
        }
        found.add_headers(self, files, commit)?;
        found.check(&spec, files);
        if !found.problems.is_empty() {
            return Err(self.unfit(found.problems));
        }
        files.retain(|file| {
            let tensors = found.by_file.get(file.path.as_str());
            let is_drafter = tensors.is_some_and(|it| weights::is_drafter(&spec, it));
            if is_drafter {
                tracing::info!(file = file.path.as_str(), "not fetched: it only drafts tokens");
            }
            !is_drafter
        });
        Ok(fetched_bytes)
    }

    /// Fetches a file with a JSON object. Returns it, and the number of bytes that came over the
    /// network; `None` if the repository has no such file.
    fn fetch_json(
        &self,
        name: &str,
        bytes_max: u64,
        files: &[RemoteFile],
        commit: &str,
    ) -> Result<Option<(Value, u64)>, PullError> {
        let malformed =
            |detail| self.unfit(vec![Problem::Malformed { name: name.to_owned(), detail }]);
        let Some(file) = files.iter().find(|file| file.path.as_str() == name) else {
            return Ok(None);
        };
        if bytes_max < file.bytes {
            return Err(malformed(format!("it has {}", counted(file.bytes, "byte"))));
        }
        let bar = self.config.progress.begin("reading its description", file.bytes);
        let mut fetched_bytes = 0;
        for job in self.destination.jobs(std::slice::from_ref(file)) {
            let progress = FileBytes::of(&job);
            let counting = Counting { bar: &*bar, file: &progress };
            fetched_bytes += Fetch::new(self, &job, commit, counting).run()?;
            if let Some(json) = read_json(&job.done, bytes_max).map_err(&malformed)? {
                return Ok(Some((json, fetched_bytes)));
            }
        }
        Ok(None)
    }

    fn unfit(&self, problems: Vec<Problem>) -> PullError {
        PullError::Unfit { repo: self.repo.clone(), problems }
    }

    /// Fetches the header of a weight file.
    fn header(&self, file: &RemoteFile, commit: &str) -> Result<TensorHeaders, Cause> {
        let (mut first, mut start) = (Vec::new(), 0);
        weights::header_of(file.path.as_str(), file.bytes, |num_bytes| {
            let end = start + num_bytes;
            if (first.len() as u64) < end {
                first = self.beginning(file, commit, end.max(FIRST_BYTES).min(file.bytes))?;
            }
            // The range is within the file, of which as much was fetched.
            let text = first[start as usize..end as usize].to_vec();
            start = end;
            Ok(text)
        })
    }

    /// Fetches the first bytes of a file.
    fn beginning(&self, file: &RemoteFile, commit: &str, num_bytes: u64) -> Result<Vec<u8>, Cause> {
        let mut retries = Retries::new(self.config.retries);
        loop {
            match self.try_beginning(file, commit, num_bytes) {
                Ok(bytes) => return Ok(bytes),
                Err(failure) => retries.again(failure, &self.stop).map_err(|err| {
                    let (path, source) = (file.path.clone(), Box::new(err));
                    Cause::Pull(PullError::Incomplete { path, source })
                })?,
            }
        }
    }

    fn try_beginning(
        &self,
        file: &RemoteFile,
        commit: &str,
        num_bytes: u64,
    ) -> Result<Vec<u8>, Failure> {
        let url = self.hub.file_url(&self.repo, commit, &file.path);
        let response = self.hub.get(&url, 0, Some(num_bytes))?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT if starts_at(&response, 0) => {}
            // A server without ranges sends the whole file, of which no more than this is read.
            StatusCode::OK => {}
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                return Err(Failure::again(HubError::OtherRange { url }, None));
            }
            _ => return Err(self.hub.refusal(&url, &self.repo, &self.revision, response)),
        }
        let mut bytes = Vec::new();
        let body = response.into_body().into_reader();
        if let Err(source) = body.take(num_bytes).read_to_end(&mut bytes) {
            let at = bytes.len() as u64;
            return Err(Failure::again(HubError::Read { url, at, source }, None));
        }
        let at = bytes.len() as u64;
        if at < num_bytes {
            return Err(Failure::again(HubError::Ended { url, at }, None));
        }
        Ok(bytes)
    }
}

impl RemoteTensors {
    /// Adds the headers of a single weight file, and of files that the index does not name.
    fn add_headers(
        &mut self,
        pull: &Pull,
        files: &[RemoteFile],
        commit: &str,
    ) -> Result<(), PullError> {
        let weights: Vec<&RemoteFile> =
            files.iter().filter(|file| is_weights(file.path.as_str())).collect();
        for file in &weights {
            let name = file.path.as_str();
            if 1 < weights.len() && self.by_file.contains_key(name) {
                continue;
            }
            let header = match pull.header(file, commit) {
                Ok(header) => header,
                Err(Cause::Problem(problem)) => {
                    self.problems.push(problem);
                    continue;
                }
                Err(Cause::Pull(err)) => return Err(err),
            };
            let promised = self.by_file.entry(name.to_owned()).or_default();
            let missing = promised.iter().filter(|tensor| !header.contains_key(*tensor));
            self.problems.extend(missing.map(|tensor| Problem::MissingTensor {
                name: name.to_owned(),
                tensor: tensor.clone(),
            }));
            promised.extend(header.keys().cloned());
            self.headers.insert(name.to_owned(), header);
        }
        Ok(())
    }

    /// Checks that all files that hold tensors of the model exist, and that it has all tensors.
    fn check(&mut self, spec: &ModelSpec, files: &[RemoteFile]) {
        for (name, tensors) in &self.by_file {
            let is_there = is_weights(name) && files.iter().any(|file| file.path.as_str() == name);
            if !is_there && !weights::is_drafter(spec, tensors) {
                self.problems.push(Problem::Missing { name: name.clone() });
            }
        }
        if !self.problems.is_empty() {
            return;
        }
        let report = if self.by_file.keys().all(|name| self.headers.contains_key(name)) {
            let mut all = TensorHeaders::new();
            self.headers.values().for_each(|headers| all.extend(headers.clone()));
            spec.check(&all)
        } else {
            spec.check_names(self.by_file.values().flatten().map(String::as_str))
        };
        self.problems.extend(report.problems.into_iter().map(Problem::Tensor));
    }
}
