//! Compiles the shim against MLX's headers and says how to link and find libmlx.
//!
//! A library's build script cannot set its dependents' run path, so this one publishes the link
//! arguments as metadata (`DEP_MLX_LINK_ARGS`, separated by 0x1f); the build scripts of the crates
//! whose binaries or tests are linked pass them on.
#![expect(clippy::disallowed_methods, reason = "cargo speaks to build scripts through variables")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const MLX_VERSION: &str = "0.32.4";

/// Where an installed binary looks for libmlx, relative to itself: beside it, or in `lib/` of the
/// same installation.
const INSTALLED: [&str; 2] = ["mlx/lib", "../lib/jackalope/mlx/lib"];

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            for line in message.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    let prefix = find_prefix()?;
    check_version(&prefix)?;
    compile_shim(&prefix)?;
    let lib_dir = prefix.join("lib");
    println!("cargo::rustc-link-search=native={}", lib_dir.display());
    println!("cargo::rustc-link-lib=dylib=mlx");
    let link_args = link_args(&lib_dir);
    for arg in &link_args {
        println!("cargo::rustc-link-arg={arg}");
    }
    println!("cargo::metadata=LINK_ARGS={}", link_args.join("\u{1f}"));
    println!("cargo::metadata=PREFIX={}", prefix.display());
    Ok(())
}

/// `MLX_PREFIX`, or the folder that `cargo xtask mlx` selected.
fn find_prefix() -> Result<PathBuf, String> {
    println!("cargo::rerun-if-env-changed=MLX_PREFIX");
    if let Some(prefix) = env::var_os("MLX_PREFIX").filter(|prefix| !prefix.is_empty()) {
        return Ok(PathBuf::from(prefix));
    }
    let out_dir = PathBuf::from(variable("OUT_DIR")?);
    let workspace_target = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("../../target");
    let mut roots = out_dir.ancestors().map(Path::to_path_buf).chain([workspace_target]);
    let root = roots.find(|root| root.join("mlx/selected").is_file()).ok_or_else(|| {
        format!("libmlx {MLX_VERSION} is not here yet\nhint: run `cargo xtask mlx`")
    })?;
    let selected = root.join("mlx/selected");
    println!("cargo::rerun-if-changed={}", selected.display());
    let folder = fs::read_to_string(&selected)
        .map_err(|err| format!("reading {}: {err}", selected.display()))?;
    let prefix = root.join("mlx").join(folder.trim()).join("mlx");
    fs::canonicalize(&prefix)
        .map_err(|err| format!("{}: {err}\nhint: run `cargo xtask mlx`", prefix.display()))
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|err| format!("cargo did not set {name}: {err}"))
}

/// The shim uses parts of MLX whose C++ ABI changes between versions.
fn check_version(prefix: &Path) -> Result<(), String> {
    let header = prefix.join("include/mlx/version.h");
    println!("cargo::rerun-if-changed={}", header.display());
    let text = fs::read_to_string(&header).map_err(|err| {
        format!(
            "no MLX headers: {}: {err}\n\
             hint: MLX_PREFIX is the folder that holds include/ and lib/; unset it and run \
             `cargo xtask mlx`",
            header.display()
        )
    })?;
    let number = |name: &str| {
        let prefix = format!("#define MLX_VERSION_{name} ");
        text.lines().find_map(|line| line.strip_prefix(&prefix)).map_or("?", str::trim)
    };
    let found = format!("{}.{}.{}", number("MAJOR"), number("MINOR"), number("PATCH"));
    if found != MLX_VERSION {
        return Err(format!(
            "{} holds MLX {found}, this crate needs {MLX_VERSION}\n\
             hint: unset MLX_PREFIX and run `cargo xtask mlx`",
            prefix.display()
        ));
    }
    Ok(())
}

fn compile_shim(prefix: &Path) -> Result<(), String> {
    for path in [
        "src/ffi.rs",
        "cpp/shim.h",
        "cpp/shim.cc",
        "cpp/graph_copy.h",
        "cpp/graph_copy.cc",
        "build.rs",
    ] {
        println!("cargo::rerun-if-changed={path}");
    }
    let mut build = cxx_build::bridge("src/ffi.rs");
    build
        .files(["cpp/shim.cc", "cpp/graph_copy.cc"])
        .include("cpp")
        .std("c++20")
        // The shim is thin and called for every node: optimise it in every profile.
        .opt_level(2)
        .warnings(false) // MLX's headers are not ours to fix.
        .flag(format!("-isystem{}", prefix.join("include").display()));
    build.try_compile("jackalope_mlx_shim").map_err(|err| {
        format!(
            "{err}\nhint: MLX's headers need a C++20 compiler (g++ 11, clang 14 or newer): \
             apt install g++, xcode-select --install, or point CXX at one"
        )
    })
}

/// The run path: this build's library first, then where an installation keeps it.
fn link_args(lib_dir: &Path) -> Vec<String> {
    let macos = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "macos");
    let origin = if macos { "@executable_path" } else { "$ORIGIN" };
    let mut args = vec![format!("-Wl,-rpath,{}", lib_dir.display())];
    args.extend(INSTALLED.map(|dir| format!("-Wl,-rpath,{origin}/{dir}")));
    if !macos {
        // What libmlx itself needs (BLAS, CUDA) is found through its own run path, not ours.
        args.push("-Wl,--allow-shlib-undefined".to_owned());
    }
    args
}
