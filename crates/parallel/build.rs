//! Passes on how binaries and tests find libmlx at run time, as `jackalope-mlx` found it.
#![expect(clippy::disallowed_methods, reason = "cargo speaks to build scripts through variables")]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let args =
        std::env::var("DEP_MLX_LINK_ARGS").expect("jackalope-mlx publishes its link arguments");
    for arg in args.split('\u{1f}') {
        println!("cargo::rustc-link-arg={arg}");
    }
}
