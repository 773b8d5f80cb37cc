//! Reads the numbers of tokens that tables of n-grams are indexed by.

use std::path::Path;
use std::sync::Arc;

use jackalope_spec::TokenMapSpec;

use super::config::read_text;
use super::files::Files;
use crate::error::LoadError;

/// Reads the file of a checkpoint in `dir`.
pub(super) fn read(
    dir: &Path,
    spec: &TokenMapSpec,
    files: &dyn Files,
) -> Result<Arc<[u32]>, LoadError> {
    let path = dir.join(TokenMapSpec::FILE);
    let text = read_text(&path, TokenMapSpec::FILE, files)?;
    let refused = |reason| LoadError::Config { path: path.clone(), reason };
    let map: Vec<u32> = serde_json::from_slice(&text)
        .map_err(|err| refused(format!("not a list of numbers: {err}")))?;
    if map.len() <= spec.padding_token as usize {
        let (found, least) = (map.len(), spec.padding_token);
        return Err(refused(format!("{found} numbers, expected more than {least}")));
    }
    let num_numbers = map.iter().max().map_or(0, |most| *most as usize + 1);
    if num_numbers != spec.num_numbers {
        let expected = spec.num_numbers;
        let reason = format!("{num_numbers} different numbers, config.json states {expected}");
        return Err(refused(reason));
    }
    Ok(map.into())
}
