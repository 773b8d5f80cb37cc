//! Nothing behind a matrix is read: weights are mapped from files, whose last page may be followed by nothing.
#![expect(unsafe_code, reason = "mapping files and reading them as numbers")]

use std::fs;
use std::mem::size_of;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::bf16;
use jackalope_kernels::{Elements, Float, QuantMatrix, Scales, quantized_matmul};
use memmap2::{MmapMut, MmapOptions};

use crate::support::{Floats, OwnedScales, Random, formats, pools};

/// Size of the mapped files: a multiple of the page size of every system.
const FILE_BYTES: usize = 64 << 10;

/// Values at the end of a file that is mapped with as many bytes after it. Reading one of these ends
/// the process.
struct AtEnd(MmapMut, usize);

impl AtEnd {
    fn new(bytes: &[u8]) -> AtEnd {
        static NUM_FILES: AtomicUsize = AtomicUsize::new(0);
        let number = NUM_FILES.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("jackalope-bounds-{}-{number}", std::process::id()));
        fs::write(&path, vec![0; FILE_BYTES]).expect("a file is written");
        let file = fs::File::options().read(true).write(true).open(&path);
        let file = file.expect("the file is there");
        // SAFETY: nobody else knows the file.
        let map = unsafe { MmapOptions::new().len(2 * FILE_BYTES).map_mut(&file) };
        let mut map = map.expect("a file is mapped");
        fs::remove_file(&path).expect("the file is there");
        let start = FILE_BYTES - bytes.len();
        map[start..FILE_BYTES].copy_from_slice(bytes);
        AtEnd(map, start)
    }

    /// The values of a type that has no invalid bits.
    fn values<T: Copy>(&self) -> &[T] {
        // SAFETY: the caller's choice of a type.
        let (before, values, after) = unsafe { self.0[self.1..FILE_BYTES].align_to::<T>() };
        assert!(before.is_empty() && after.is_empty(), "a multiple of {} bytes", size_of::<T>());
        values
    }
}

fn bf16_bytes(values: &Floats) -> Vec<u8> {
    values.to_f64().into_iter().flat_map(|it| bf16::from_f64(it).to_le_bytes()).collect()
}

#[test]
fn nothing_behind_a_matrix_is_read() {
    for format in formats() {
        for (out, num_groups) in [(1, 1), (2, 1), (9, 1), (3, 3), (2, 4), (2, 8), (3, 11), (1, 16)]
        {
            let input = num_groups * format.group_size as usize;
            let mut random = Random(input as u64);
            let owned = random.quant(format, (out, input), Float::Bf16, 1.0);
            let words = owned.words.iter().flat_map(|it| it.to_le_bytes());
            let words = AtEnd::new(&words.collect::<Vec<u8>>());
            let (scales, biases) = match &owned.scales {
                OwnedScales::Affine(scales, biases) => {
                    (AtEnd::new(&bf16_bytes(scales)), Some(AtEnd::new(&bf16_bytes(biases))))
                }
                OwnedScales::Bytes(scales) => (AtEnd::new(scales), None),
            };
            let matrix = QuantMatrix {
                words: words.values(),
                scales: match &biases {
                    Some(_) => Scales::Elements(Elements::Bf16(scales.values())),
                    None => Scales::Bytes(scales.values()),
                },
                biases: biases.as_ref().map(|it| Elements::Bf16(it.values())),
                ..owned.view()
            };
            for tokens in [1, 2, 4, 7, 40] {
                let x = random.floats(Float::Bf16, tokens * input, 1.0);
                for threads in pools(1) {
                    let multiply = |matrix: &QuantMatrix<'_>| {
                        let mut out = Floats::unwritten(Float::F32, tokens * out);
                        quantized_matmul(x.view(), matrix, out.view_mut(), &threads);
                        out.bits()
                    };
                    assert_eq!(multiply(&matrix), multiply(&owned.view()), "{format:?}");
                }
            }
        }
    }
}
