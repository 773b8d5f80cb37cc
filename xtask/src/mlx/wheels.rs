//! The wheels that make up libmlx on each platform, with their hashes.
//!
//! Every hash below was computed from a downloaded file. A wheel that is not listed is never
//! unpacked.

use std::fmt;

/// The version of MLX that the workspace uses. The shim compiles against its headers and its C++
/// ABI is not stable, so no other version works.
pub(crate) const MLX_VERSION: &str = "0.32.4";

/// The first macOS on which the library of the `macosx_26_0` wheel loads: it is built for 26.2.
const MACOS_WITH_RDMA: (u32, u32) = (26, 2);

/// One wheel of the package index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wheel {
    pub(crate) project: &'static str,
    pub(crate) version: &'static str,
    /// The tags of the file name, after `project-version-`.
    pub(crate) tags: &'static str,
    pub(crate) sha256: &'static str,
}

impl Wheel {
    pub(crate) fn file_name(&self) -> String {
        format!("{}-{}-{}.whl", self.project.replace('-', "_"), self.version, self.tags)
    }

    /// Returns what an installer is asked for.
    pub(crate) fn requirement(&self) -> String {
        format!("{}=={}", self.project, self.version)
    }

    /// Returns the platform tag for the installer: the first one in the file name.
    pub(crate) fn platform_tag(&self) -> &'static str {
        let platforms = self.tags.rsplit('-').next().expect("rsplit yields at least one part");
        platforms.split('.').next().expect("split yields at least one part")
    }
}

/// The platform of a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Platform {
    LinuxX86 {
        cuda: bool,
    },
    LinuxArm {
        cuda: bool,
    },
    /// macOS on Apple silicon; the version decides which wheel fits.
    Macos {
        version: (u32, u32),
    },
}

/// Reason why there is no library for a machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unsupported {
    Machine { os: String, arch: String },
    OldMacos { version: (u32, u32) },
    CudaOnMacos,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsupported::Machine { os, arch } => write!(
                f,
                "there is no official MLX library for {os} on {arch}\n\
                 hint: Linux (x86_64, aarch64) and macOS (Apple silicon) are supported"
            ),
            Unsupported::OldMacos { version: (major, minor) } => write!(
                f,
                "the official MLX library needs macOS 14 or newer, found {major}.{minor}\n\
                 hint: update macOS, or set MLX_PREFIX to a library of your own"
            ),
            Unsupported::CudaOnMacos => {
                write!(f, "--cuda asks for a Linux library\nhint: leave --cuda out: Metal is used")
            }
        }
    }
}

impl std::error::Error for Unsupported {}

impl Platform {
    /// Returns the platform of an operating system and processor, named as in `std::env::consts`.
    pub(crate) fn of(
        os: &str,
        arch: &str,
        macos_version: Option<(u32, u32)>,
        cuda: bool,
    ) -> Result<Platform, Unsupported> {
        match (os, arch, macos_version) {
            ("linux", "x86_64", _) => Ok(Platform::LinuxX86 { cuda }),
            ("linux", "aarch64", _) => Ok(Platform::LinuxArm { cuda }),
            ("macos", "aarch64", _) if cuda => Err(Unsupported::CudaOnMacos),
            ("macos", "aarch64", Some(version)) if version.0 < 14 => {
                Err(Unsupported::OldMacos { version })
            }
            ("macos", "aarch64", Some(version)) => Ok(Platform::Macos { version }),
            _ => Err(Unsupported::Machine { os: os.to_owned(), arch: arch.to_owned() }),
        }
    }

    /// Returns the folder under `target/mlx/`.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Platform::LinuxX86 { cuda: false } => "linux-x86_64",
            Platform::LinuxX86 { cuda: true } => "linux-x86_64-cuda13",
            Platform::LinuxArm { cuda: false } => "linux-aarch64",
            Platform::LinuxArm { cuda: true } => "linux-aarch64-cuda13",
            Platform::Macos { version } if version >= MACOS_WITH_RDMA => "macos26-arm64",
            Platform::Macos { version: (14, _) } => "macos14-arm64",
            Platform::Macos { .. } => "macos15-arm64",
        }
    }

    /// Returns the wheels to unpack into the same folder.
    pub(crate) fn wheels(self) -> &'static [Wheel] {
        match self {
            Platform::LinuxX86 { cuda: false } => &[CPU_X86],
            Platform::LinuxX86 { cuda: true } => CUDA_X86,
            Platform::LinuxArm { cuda: false } => &[CPU_ARM],
            Platform::LinuxArm { cuda: true } => CUDA_ARM,
            Platform::Macos { version } if version >= MACOS_WITH_RDMA => &[METAL_26],
            Platform::Macos { version: (14, _) } => &[METAL_14],
            Platform::Macos { .. } => &[METAL_15],
        }
    }
}

const fn mlx(project: &'static str, tags: &'static str, sha256: &'static str) -> Wheel {
    Wheel { project, version: MLX_VERSION, tags, sha256 }
}

const fn nvidia(
    project: &'static str,
    version: &'static str,
    tags: &'static str,
    sha256: &'static str,
) -> Wheel {
    Wheel { project, version, tags, sha256 }
}

const CPU_X86: Wheel = mlx(
    "mlx-cpu",
    "py3-none-manylinux_2_35_x86_64",
    "0e0a24fa2ce8b6b94d2e6a90604e8813aa8e29fcb918bb2aa01cfb6d133d8cee",
);
const CPU_ARM: Wheel = mlx(
    "mlx-cpu",
    "py3-none-manylinux_2_35_aarch64",
    "1289e85e64af1fd16380bf331438bfe4afe875d27afc3e0bcf35f427c488fadd",
);
const METAL_14: Wheel = mlx(
    "mlx-metal",
    "py3-none-macosx_14_0_arm64",
    "8019b2db622599267d66cc168b2f0dbf5af929790a6c3b3913e00eabc42a7947",
);
const METAL_15: Wheel = mlx(
    "mlx-metal",
    "py3-none-macosx_15_0_arm64",
    "9f0a3cc26d89724434d9684932fc6f3e4e83669d2a895d858ed2c8a55eb84e8b",
);
const METAL_26: Wheel = mlx(
    "mlx-metal",
    "py3-none-macosx_26_0_arm64",
    "514df92d41a286895d2564b4b18f4da45096bd7a4a0c47e1042f345ad5a7f936",
);

/// The CUDA build links NVIDIA's libraries and finds them beside itself, as their wheels unpack. The
/// driver (`libcuda`) is the machine's.
const CUDA_X86: &[Wheel] = &[
    mlx(
        "mlx-cuda-13",
        "py3-none-manylinux_2_35_x86_64",
        "94cb48fba73e5ee39467e51c35c51c691123359ca17bafd1a24cf92ad6732bee",
    ),
    nvidia(
        "nvidia-cublas",
        "13.10.0.20",
        "py3-none-manylinux1_x86_64.manylinux_2_5_x86_64",
        "dcc6d63884c53d07e267ce7e6feac17b2538cebaafec5db865736c3e28e4dc84",
    ),
    nvidia(
        "nvidia-cuda-nvrtc",
        "13.5.37",
        "py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64",
        "86b4d68058807988b7d9af5b44917a0601e9c337f35ccd657bfb3c759ff8d8bc",
    ),
    nvidia(
        "nvidia-cuda-runtime",
        "13.5.37",
        "py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64",
        "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
    ),
    nvidia(
        "nvidia-cudnn-cu13",
        "9.28.0.42",
        "py3-none-manylinux_2_27_x86_64",
        "7358353c75bb121a58e5f7712fe6d588883dc1df8ba00f428237e44e97543c4d",
    ),
    nvidia(
        "nvidia-cufft",
        "12.5.0.14",
        "py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64",
        "b8be26837a5abad2b5b74f3e92dd29f622a42934b355be0961a48712cbba23ad",
    ),
    nvidia(
        "nvidia-cusolver",
        "12.4.1.2",
        "py3-none-manylinux_2_27_x86_64",
        "b3b8e02fd2f2df869369af075dc3a179d43f6f7b85e94632a7dce556697be044",
    ),
    nvidia(
        "nvidia-cusparse",
        "12.9.4.2",
        "py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64",
        "072667e58c851a318738f5527a12eb225cbf058803f2ea451c722d8cf8edddec",
    ),
    nvidia(
        "nvidia-nccl-cu13",
        "2.32.3",
        "py3-none-manylinux_2_27_x86_64",
        "1459723080ac889d73a26edfa3e04383a7928ab31ac8f0ec43b3ea9548b04ff3",
    ),
    nvidia(
        "nvidia-nvjitlink",
        "13.5.37",
        "py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64",
        "280d7cb9649704145f074b8dbde500de04ce02d0872e066e20a83c17bcaa93eb",
    ),
];
const CUDA_ARM: &[Wheel] = &[
    mlx(
        "mlx-cuda-13",
        "py3-none-manylinux_2_35_aarch64",
        "cf8a67b49cebff85cd98b1d118c09f6c8ee966b899a914c50cc74d614b25616e",
    ),
    nvidia(
        "nvidia-cublas",
        "13.10.0.20",
        "py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64",
        "c5f3418c0a845232a8cabc58f6fa52cfae7d8bd3680d94c3907aca710fd48d70",
    ),
    nvidia(
        "nvidia-cuda-nvrtc",
        "13.5.37",
        "py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64",
        "36e4fa2a8ada293f5693d308e531c196ab6f91cf7a0ff479bf96a537d43a6096",
    ),
    nvidia(
        "nvidia-cuda-runtime",
        "13.5.37",
        "py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64",
        "de2dc5a7367974228b0a69588a9acc9340d3768bef1bf38bf0801eb08497cd2d",
    ),
    nvidia(
        "nvidia-cudnn-cu13",
        "9.28.0.42",
        "py3-none-manylinux_2_27_aarch64",
        "97c70c7fe0ea32e97fcd0b40157915d27f0d1e238479e537e81b12ed3c8f17ae",
    ),
    nvidia(
        "nvidia-cufft",
        "12.5.0.14",
        "py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64",
        "091cde103312d6e09366122fe3f67092dcfd94cc9785029d695d6bcffaa76fdf",
    ),
    nvidia(
        "nvidia-cusolver",
        "12.4.1.2",
        "py3-none-manylinux_2_27_aarch64",
        "1f54c8e0d5b1ebd183b4c5a79f0709fa90241e8254da381ca5b969ee97c8de32",
    ),
    nvidia(
        "nvidia-cusparse",
        "12.9.4.2",
        "py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64",
        "e2ce97f185c9c4b285e4a8fbf02cb96dd1b8dd66736ebe2f0a8da5f6012a4fb7",
    ),
    nvidia(
        "nvidia-nccl-cu13",
        "2.32.3",
        "py3-none-manylinux_2_27_aarch64",
        "a5bee92b2f4af218c109f8d221c3c9adcc752b94ae0ffcb0ed5abf9341a7724c",
    ),
    nvidia(
        "nvidia-nvjitlink",
        "13.5.37",
        "py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64",
        "893f6f9a55b2720ed94913b5ba3332e972da8c78dfa2863d0244403dbd528ffc",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    const MACOS: [((u32, u32), &str); 6] = [
        ((14, 0), "macosx_14_0_arm64"),
        ((14, 7), "macosx_14_0_arm64"),
        ((15, 6), "macosx_15_0_arm64"),
        ((26, 1), "macosx_15_0_arm64"),
        ((26, 2), "macosx_26_0_arm64"),
        ((27, 0), "macosx_26_0_arm64"),
    ];

    #[test]
    fn the_macos_version_picks_the_newest_wheel_that_loads_on_it() {
        for (version, tag) in MACOS {
            let platform = Platform::of("macos", "aarch64", Some(version), false).unwrap();
            assert_eq!(platform.wheels()[0].platform_tag(), tag, "macOS {version:?}");
        }
    }

    #[test]
    fn linux_gets_its_processors_wheel_and_cuda_on_request() {
        let tag = |arch, cuda| {
            let wheel = Platform::of("linux", arch, None, cuda).unwrap().wheels()[0];
            (wheel.project, wheel.platform_tag())
        };
        assert_eq!(tag("x86_64", false), ("mlx-cpu", "manylinux_2_35_x86_64"));
        assert_eq!(tag("aarch64", false), ("mlx-cpu", "manylinux_2_35_aarch64"));
        assert_eq!(tag("x86_64", true), ("mlx-cuda-13", "manylinux_2_35_x86_64"));
        assert_eq!(tag("aarch64", true), ("mlx-cuda-13", "manylinux_2_35_aarch64"));
    }

    #[test]
    fn a_machine_without_a_library_is_refused_with_a_hint() {
        let refused = [
            Platform::of("windows", "x86_64", None, false),
            Platform::of("macos", "x86_64", Some((14, 0)), false),
            Platform::of("macos", "aarch64", Some((13, 6)), false),
            Platform::of("macos", "aarch64", Some((26, 2)), true),
        ];
        for refusal in refused {
            let message = refusal.unwrap_err().to_string();
            assert!(message.contains("\nhint: "), "{message}");
        }
    }

    #[test]
    fn every_pin_is_a_sha256_and_names_its_file() {
        let mut all = vec![CPU_X86, CPU_ARM, METAL_14, METAL_15, METAL_26];
        all.extend(CUDA_X86.iter().chain(CUDA_ARM));
        for wheel in all {
            let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
            assert_eq!(wheel.sha256.len(), 64, "{wheel:?}");
            assert!(wheel.sha256.chars().all(is_hex), "{wheel:?}");
        }
        assert_eq!(CPU_X86.file_name(), "mlx_cpu-0.32.4-py3-none-manylinux_2_35_x86_64.whl");
    }
}
