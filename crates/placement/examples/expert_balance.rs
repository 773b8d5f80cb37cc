//! Compares two ways to divide experts over equal machines: slices of every expert, as Jackalope divides
//! them, and whole experts, each on one machine. A step takes as long as its busiest rank, so the table
//! shows the work of that rank, divided by the mean: `cargo run -p jackalope-placement --example
//! expert_balance`.
//!
//! Tokens choose experts evenly and independently, which favours whole experts: real routers do not.
#![expect(clippy::print_stdout, reason = "a program for people")]

/// The experts of a published model.
struct Shape {
    name: &'static str,
    /// Inner width of an expert.
    inner: usize,
    /// Elements of a quantisation group, which is not divided.
    group: usize,
    experts: usize,
    /// Experts of a token.
    chosen: usize,
}

const SHAPES: [Shape; 6] = [
    Shape { name: "Qwen3-Next 80B", inner: 512, group: 64, experts: 512, chosen: 10 },
    Shape { name: "Qwen3 30B-A3B", inner: 768, group: 64, experts: 128, chosen: 8 },
    Shape { name: "OLMoE 7B", inner: 1024, group: 64, experts: 64, chosen: 8 },
    Shape { name: "GLM-4.5-Air", inner: 1408, group: 64, experts: 128, chosen: 8 },
    Shape { name: "DeepSeek V3", inner: 2048, group: 64, experts: 256, chosen: 8 },
    Shape { name: "gpt-oss 120B", inner: 2880, group: 32, experts: 128, chosen: 4 },
];

/// Steps over which the busiest rank's work is averaged.
const STEPS: usize = 2000;

/// Numbers of sequences that decode together.
const SEQUENCES: [usize; 3] = [1, 8, 64];

fn main() {
    let mut random = Random(1);
    println!("| Model | Ranks | Slices | Whole experts, 1 sequence | 8 sequences | 64 sequences |");
    println!("|---|---|---|---|---|---|");
    for shape in &SHAPES {
        for ranks in 2..=8 {
            let whole = SEQUENCES.map(|sequences| shape.whole(ranks, sequences, &mut random));
            let [one, eight, many] = whole.map(|it| format!("{it:.2}"));
            let (name, slices) = (shape.name, shape.slices(ranks));
            println!("| {name} | {ranks} | {slices:.2} | {one} | {eight} | {many} |");
        }
    }
}

impl Shape {
    /// Returns the part of the rank with most groups of each expert, divided by the mean.
    fn slices(&self, ranks: usize) -> f64 {
        let groups = self.inner.div_ceil(self.group);
        groups.div_ceil(ranks) as f64 * ranks as f64 / groups as f64
    }

    /// Returns the number of distinct experts that the busiest rank reads in a step, divided by the mean.
    fn whole(&self, ranks: usize, sequences: usize, random: &mut Random) -> f64 {
        let (mut busiest, mut all) = (0, 0);
        for _ in 0..STEPS {
            let mut is_chosen = vec![false; self.experts];
            for _ in 0..sequences {
                let mut own = Vec::with_capacity(self.chosen);
                while own.len() < self.chosen {
                    let expert = random.below(self.experts);
                    if !own.contains(&expert) {
                        own.push(expert);
                    }
                }
                own.into_iter().for_each(|expert| is_chosen[expert] = true);
            }
            let mut of_rank = vec![0; ranks];
            for (expert, _) in is_chosen.iter().enumerate().filter(|(_, is_chosen)| **is_chosen) {
                of_rank[expert % ranks] += 1;
            }
            busiest += of_rank.iter().max().expect("there are ranks");
            all += of_rank.iter().sum::<usize>();
        }
        busiest as f64 * ranks as f64 / all as f64
    }
}

/// Numbers that are the same in every run: SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * limit as u128) >> 64) as usize
    }
}
