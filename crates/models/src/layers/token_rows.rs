//! The tokens of a step's rows, for layers that read them.
//!
//! In a pipeline they travel beside the stream: in columns with the bytes of their ids, which every type of
//! a model has exactly.

use std::sync::{Arc, OnceLock};

use jackalope_mlx::{Array, ArrayType, Dtype, dim};
use jackalope_protocol::TokenId;

use crate::step::StepTokens;
use jackalope_parallel::kernel::primitive;
use jackalope_parallel::{Compute, Parallel};

/// Number of bytes of an id.
const ID_BYTES: usize = 3;

/// Tokens of a step's rows.
#[derive(Clone, Debug)]
pub(crate) struct TokenRows {
    /// For our kernels; written before the first layer that reads them is computed.
    pub(super) host: Arc<OnceLock<Vec<TokenId>>>,
    /// For MLX's operations, i32 `[tokens]`.
    pub(super) device: Option<Array>,
    /// The columns in which they were received, `[tokens, ID_BYTES]`.
    received: Option<Array>,
}

impl TokenRows {
    /// Number of columns in which they travel.
    pub(super) const COLUMNS: usize = ID_BYTES;

    /// Returns the tokens of a step on a rank that embeds them.
    pub(crate) fn of_step(tokens: StepTokens<'_>, parallel: &Parallel) -> TokenRows {
        let host = Arc::new(OnceLock::from(tokens.host.to_vec()));
        let known = || Array::from_slice(tokens.host, &[dim(tokens.host.len())]);
        let device = match parallel.compute() {
            Compute::Kernels(_) => None,
            Compute::Stock => Some(tokens.device.cloned().unwrap_or_else(known).astype(Dtype::I32)),
        };
        TokenRows { host, device, received: None }
    }

    /// Takes the columns off what another stage has sent. Returns the stream `[tokens, hidden]`, and the
    /// tokens.
    pub(super) fn take_from(
        sent: &Array,
        hidden: usize,
        parallel: &Parallel,
    ) -> (Array, TokenRows) {
        let end = dim(hidden + ID_BYTES);
        let columns = sent.slice_axis(1, dim(hidden), end).contiguous();
        let host = Arc::new(OnceLock::new());
        let Compute::Kernels(threads) = parallel.compute() else {
            let bytes = columns.astype(Dtype::F32);
            let byte = |idx: i32| bytes.slice_axis(1, idx, idx + 1).squeeze(1);
            let id = byte(0).add(&(&byte(1) * 256.0)).add(&(&byte(2) * 65_536.0));
            let device = Some(id.astype(Dtype::I32));
            let stream = sent.slice_axis(1, 0, dim(hidden)).contiguous();
            return (stream, TokenRows { host, device, received: Some(columns) });
        };
        let ids = Arc::clone(&host);
        let out = ArrayType { shape: vec![sent.dim(0), dim(hidden)], dtype: sent.dtype() };
        let stream = primitive("token_rows", &[sent], out, threads, move |inputs, mut out, _| {
            let sent = inputs.elements().to_f32();
            let rows = sent.chunks_exact(hidden + ID_BYTES);
            let bytes = rows.clone().map(|row| &row[hidden..]);
            let id =
                |bytes: &[f32]| bytes.iter().rev().fold(0, |id, byte| (id << 8) | *byte as TokenId);
            ids.get_or_init(|| bytes.map(id).collect());
            for (idx, row) in rows.enumerate() {
                out.store(idx * hidden, &row[..hidden]);
            }
        });
        (stream, TokenRows { host, device: None, received: Some(columns) })
    }

    /// Returns the columns in which they travel, `[tokens, COLUMNS]`.
    pub(super) fn columns(&self, dtype: Dtype) -> Array {
        if let Some(received) = &self.received {
            return received.clone();
        }
        let ids = self.host.get().expect("the first stage knows its tokens");
        let bytes = ids.iter().flat_map(|id| id.to_le_bytes().into_iter().take(ID_BYTES));
        let bytes: Vec<f32> = bytes.map(f32::from).collect();
        Array::from_slice(&bytes, &[dim(ids.len()), dim(ID_BYTES)]).astype(dtype)
    }
}

#[cfg(test)]
mod tests {
    use jackalope_kernels::Threads;

    use super::*;

    #[test]
    fn a_stage_receives_the_ids_and_the_stream_that_another_sent() {
        let ids: [TokenId; 5] = [0, 255, 256, 70_000, (1 << (8 * ID_BYTES)) - 1];
        let len = dim(ids.len());
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let stream = Array::arange(2 * len, dtype).reshape(&[len, 2]);
            for compute in [Compute::Kernels(Arc::new(Threads::new(1))), Compute::Stock] {
                let parallel = Parallel::single(compute);
                let tokens = TokenRows::of_step(StepTokens { host: &ids, device: None }, &parallel);
                let sent = Array::concatenate(&[&stream, &tokens.columns(dtype)], 1);
                let (received, tokens) = TokenRows::take_from(&sent, 2, &parallel);
                let values = |x: &Array| x.astype(Dtype::F32).to_vec::<f32>().unwrap();
                assert_eq!(values(&received), values(&stream));
                let found = match &tokens.device {
                    Some(found) => found.astype(Dtype::U32).to_vec::<u32>().unwrap(),
                    None => tokens.host.get().expect("the stream was computed").clone(),
                };
                assert_eq!(found, ids, "{dtype:?}");
                assert_eq!(values(&tokens.columns(dtype)), values(&sent.slice_axis(1, 2, 5)));
            }
        }
    }
}
