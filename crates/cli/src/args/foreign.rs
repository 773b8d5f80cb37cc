//! Options of other servers that have no meaning here, and what to use instead.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Options of vllm-mlx's `serve`. Those with a meaning here are aliases of ours.
const VLLM_MLX: &[(&str, &str)] = &[
    ("--rate-limit", "keys have limits: `--api-keys FILE` (docs/api.md)"),
    ("--expert-parallel", "experts are split like all other weights: `--split tensor`"),
    ("--ep-kernel-backend", "experts are split like all other weights: `--split tensor`"),
    ("--ep-capacity-factor", "experts have no capacity limit here: no token is dropped"),
    ("--speculative-method", "speculative decoding is not supported"),
    ("--num-speculative-tokens", "speculative decoding is not supported"),
    ("--draft-model", "speculative decoding is not supported"),
    ("--mtp-model", "speculative decoding is not supported"),
    ("--spec-decode-auto-disable-threshold", "speculative decoding is not supported"),
    ("--spec-decode-auto-disable-window", "speculative decoding is not supported"),
    ("--prefill-batch-size", "`--step-tokens` limits the tokens of a step"),
    ("--completion-batch-size", "`--running-max` limits the sequences that run together"),
    ("--stream-interval", "every token is sent at once"),
    (
        "--prefix-cache-size",
        "`--kv-mib` limits the memory of the KV cache, including cached prefixes",
    ),
    ("--cache-memory-percent", "`--kv-mib` limits the memory of the KV cache"),
    ("--kv-cache-quantization", "the KV cache is not quantised"),
    ("--kv-cache-quantization-bits", "the KV cache is not quantised"),
    ("--kv-cache-quantization-group-size", "the KV cache is not quantised"),
    ("--paged-cache-block-size", "the size of KV blocks is fixed"),
    ("--max-cache-blocks", "`--kv-mib` limits the memory of the KV cache"),
    ("--mcp-config", "the client calls tools: send `tools` with a request"),
    ("--embedding-model", "every model computes embeddings: add it with another `--model`"),
];

/// Returns a hint about what to use instead of the unknown option in an error.
pub(crate) fn hint(err: &clap::Error) -> Option<&'static str> {
    if err.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(typed)) = err.get(ContextKind::InvalidArg) else { return None };
    let name = typed.split_once('=').map_or(typed.as_str(), |(name, _)| name);
    VLLM_MLX.iter().find(|(option, _)| *option == name).map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    /// All options of vllm-mlx's `serve`, as its users write them.
    const OPTIONS: &str = "--model=m --host=0.0.0.0 --port=8000 --continuous-batching --distributed \
        --dist-backend=ring --dist-num-ranks=2 --dist-hostfile=h.json --dist-hosts=a,b --dist-env=A=b --expert-parallel \
        --ep-kernel-backend=auto --ep-capacity-factor=1.25 --speculative-method=ngram \
        --num-speculative-tokens=3 --draft-model=d --mtp-model=m --spec-decode-auto-disable-threshold=0.4 \
        --spec-decode-auto-disable-window=50 --max-num-seqs=256 --prefill-batch-size=8 \
        --completion-batch-size=32 --stream-interval=1 --chunked-prefill-tokens=512 --no-prefix-cache \
        --prefix-cache-size=100 --cache-memory-mb=512 --cache-memory-percent=.20 --kv-cache-quantization \
        --kv-cache-quantization-bits=8 --kv-cache-quantization-group-size=64 --use-paged-cache \
        --paged-cache-block-size=64 --max-cache-blocks=1000 --max-tokens=32768 --api-key=k --rate-limit=0 \
        --timeout=300 --enable-auto-tool-choice --tool-call-parser=hermes --reasoning-parser=qwen3 \
        --mcp-config=f --embedding-model=e";

    #[test]
    fn every_option_of_vllm_mlx_is_taken_or_refused_with_a_hint() {
        for option in OPTIONS.split_whitespace() {
            let model = (!option.starts_with("--model=")).then_some("--model=m");
            let words = ["jackalope", "serve", option].into_iter().chain(model);
            if let Err(err) = Args::try_parse_from(words) {
                assert!(hint(&err).is_some(), "{option}: {err}");
            }
        }
        let err = Args::try_parse_from(["jackalope", "serve", "--model=m", "--foo"]).unwrap_err();
        assert_eq!(hint(&err), None);
    }

    #[test]
    fn options_of_vllm_mlx_mean_ours() {
        let words = "jackalope serve --model m --max-num-seqs 8 --max-tokens 99 --timeout 30 \
            --tool-call-parser hermes --enable-auto-tool-choice --continuous-batching --use-paged-cache \
            --chunked-prefill-tokens 128 --cache-memory-mb 64 --dist-num-ranks 2";
        let parsed = Args::try_parse_from(words.split_whitespace()).unwrap();
        let Command::Serve(args) = parsed.command else { panic!("{parsed:?}") };
        assert_eq!((args.ranks.running_max, args.ranks.step_tokens), (8, Some(128)));
        assert_eq!((args.ranks.kv_mib, args.ranks.ranks), (Some(64), 2));
        assert_eq!((args.default_max_tokens, args.tool_parser.as_str()), (Some(99), "hermes"));
        assert_eq!(args.request_timeout, Some(std::time::Duration::from_secs(30)));
    }
}
