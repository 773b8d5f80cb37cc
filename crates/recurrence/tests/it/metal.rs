//! The kernel's source, compiled as C++ with a shim of the part of Metal and CUDA that it uses, and run
//! lane by lane: no GPU is at hand where tests run.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use jackalope_recurrence::{KernelLanguage, KernelShape, Rule, kernel_source};

/// What the source takes from its language. The lanes of a group are threads that meet at each sum.
const SHIM: &str = r"
#include <barrier>
#include <cmath>
#include <cstdio>
#include <thread>
#include <vector>
using uint = unsigned int;
struct uint3 { uint x, y, z; };
static std::barrier<> meeting(32);
static float parts[32];
static thread_local int own_lane;
static float lane_sum(float x) {
  parts[own_lane] = x;
  meeting.arrive_and_wait();
  float sum = 0;
  for (float part : parts) sum += part;
  meeting.arrive_and_wait();
  return sum;
}
static float simd_sum(float x) { return lane_sum(x); }
static float jackalope_lane_sum(float x) { return lane_sum(x); }
";

/// Runs the kernel for every row, and compares it with the definition in double precision.
const MAIN: &str = r#"
static double next() {
  static unsigned long long state = 1;
  state = state * 6364136223846793005ull + 1;
  return double(state >> 40) / double(1 << 24);
}
static std::vector<float> numbers(int len, double low, double high) {
  std::vector<float> values(len);
  for (float& value : values) value = float(low + (high - low) * next());
  return values;
}
int main() {
  const int B = 2, T = 5;
  int seq[1] = {T};
  auto q = numbers(B * T * KEY_HEADS * KEY_DIM, -0.3, 0.3), k = numbers(q.size(), -0.3, 0.3);
  auto v = numbers(B * T * VALUE_HEADS * VALUE_DIM, -1, 1);
  auto rate = numbers(B * T * VALUE_HEADS, 0, 1);
  auto log_decay = numbers(rate.size() * (VECTOR ? KEY_DIM : 1), -2, 0);
  auto state = numbers(B * VALUE_HEADS * VALUE_DIM * KEY_DIM, -1, 1);
  std::vector<float> results(v.size()), after(state.size());
  for (int head = 0; head < B * VALUE_HEADS; ++head)
    for (int row = 0; row < VALUE_DIM + 3; ++row) {
      std::vector<std::thread> lanes;
      for (int lane = 0; lane < 32; ++lane)
        lanes.emplace_back([&, lane] {
          own_lane = lane;
          kernel(uint3{uint(lane), uint(row), uint(head)}, q.data(), k.data(), v.data(),
                 log_decay.data(), rate.data(), state.data(), seq, results.data(), after.data());
        });
      for (auto& lane : lanes) lane.join();
    }
  double worst = 0;
  for (int b = 0; b < B; ++b)
    for (int h = 0; h < VALUE_HEADS; ++h)
      for (int row = 0; row < VALUE_DIM; ++row) {
        const long at = (long(b * VALUE_HEADS + h) * VALUE_DIM + row) * KEY_DIM;
        std::vector<double> held(state.begin() + at, state.begin() + at + KEY_DIM);
        for (int t = 0; t < T; ++t) {
          const long token = b * T + t, value = token * VALUE_HEADS + h;
          const long key = (token * KEY_HEADS + h / (VALUE_HEADS / KEY_HEADS)) * KEY_DIM;
          double found = 0, result = 0;
          for (int i = 0; i < KEY_DIM; ++i) {
            held[i] *= std::exp(double(log_decay[VECTOR ? value * KEY_DIM + i : value]));
            found += DELTA ? held[i] * k[key + i] : 0;
          }
          for (int i = 0; i < KEY_DIM; ++i) {
            held[i] += rate[value] * (v[value * VALUE_DIM + row] - found) * k[key + i];
            result += held[i] * q[key + i];
          }
          worst = std::fmax(worst, std::fabs(result - results[value * VALUE_DIM + row]));
        }
        for (int i = 0; i < KEY_DIM; ++i) worst = std::fmax(worst, std::fabs(held[i] - after[at + i]));
      }
  std::printf("%g\n", worst);
  return worst < 1e-5 ? 0 : 1;
}
"#;

/// Returns a program that runs the kernel as MLX would declare it.
fn program(language: KernelLanguage, shape: KernelShape) -> String {
    let mut text = SHIM.to_owned();
    for (name, value) in shape.constants() {
        writeln!(text, "constexpr int {name} = {value};").unwrap();
    }
    let indices = match language {
        KernelLanguage::Metal => "const uint3 thread_position_in_grid = at;",
        KernelLanguage::Cuda => {
            "const uint3 threadIdx{at.x, 0, 0}, blockIdx{0, at.y, at.z}, blockDim{32, 1, 1};"
        }
    };
    let body = kernel_source(language);
    write!(
        text,
        "static void kernel(uint3 at, const float* q, const float* k, const float* v,\n\
         const float* log_decay, const float* rate, const float* state_in, const int* seq,\n\
         float* results, float* state_out) {{\n{indices}\n{body}}}\n{MAIN}"
    )
    .unwrap();
    text
}

fn scratch() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("recurrence-kernel");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a compiler and its program, which end by themselves"
)]
fn the_kernels_source_compiles_in_both_languages_and_computes_the_recurrence() {
    let shape = KernelShape {
        rule: Rule::Delta,
        decays_by_element: false,
        key_heads: 1,
        value_heads: 2,
        key_dim: 64,
        value_dim: 3,
    };
    let cases = [
        (KernelLanguage::Metal, shape),
        (KernelLanguage::Cuda, KernelShape { decays_by_element: true, ..shape }),
        (
            KernelLanguage::Metal,
            KernelShape { rule: Rule::Add, key_heads: 2, key_dim: 32, ..shape },
        ),
    ];
    for (idx, (language, shape)) in cases.into_iter().enumerate() {
        let (source, binary) =
            (scratch().join(format!("{idx}.cc")), scratch().join(idx.to_string()));
        std::fs::write(&source, program(language, shape)).unwrap();
        let mut compiler = Command::new("c++");
        compiler.args([
            "-std=c++20",
            "-O1",
            "-Wall",
            "-Werror",
            "-Wno-narrowing",
            "-Wno-unused-function",
            "-pthread",
            "-o",
        ]);
        let compiled = compiler.args([&binary, &source]).output().unwrap();
        let errors = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{language:?} {shape:?}: {errors}");
        let ran = Command::new(&binary).output().unwrap();
        let worst = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success(), "{language:?} {shape:?} differs by {worst}");
    }
}
