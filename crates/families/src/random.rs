//! The random numbers of numpy's `default_rng`, from which DeepSeek V4.1 chooses constants: `SeedSequence`,
//! PCG64 (O'Neill 2014, XSL-RR over 128 bits), and Lemire's bounded integers.

const POOL: usize = 4;
const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

/// Random numbers from a seed.
pub(super) struct NumpyRandom {
    state: u128,
    increment: u128,
}

/// Words that are hashed with a factor that changes with every word.
struct WordHash {
    factor: u32,
    step: u32,
}

impl WordHash {
    fn of(&mut self, word: u32) -> u32 {
        let word = word ^ self.factor;
        self.factor = self.factor.wrapping_mul(self.step);
        folded(word.wrapping_mul(self.factor))
    }
}

fn folded(word: u32) -> u32 {
    word ^ (word >> 16)
}

impl NumpyRandom {
    pub(super) fn new(seed: u64) -> NumpyRandom {
        let [first, second, third, fourth] = seed_words(seed);
        let joined = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let increment = joined(third, fourth) << 1 | 1;
        let mut random = NumpyRandom { state: 0, increment };
        random.step();
        random.state = random.state.wrapping_add(joined(first, second));
        random.step();
        random
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    fn bits(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// Returns a number below `bound`, which is above 2^32.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let least = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.bits()) * u128::from(bound);
            if least <= product as u64 {
                return (product >> 64) as u64;
            }
        }
    }
}

/// Returns what the generator starts from.
fn seed_words(seed: u64) -> [u64; 4] {
    let mut hash = WordHash { factor: 0x43B0_D7E5, step: 0x931E_8875 };
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(|word| hash.of(word));
    for from in 0..POOL {
        for to in (0..POOL).filter(|to| *to != from) {
            let other = hash.of(pool[from]);
            let own = pool[to].wrapping_mul(0xCA01_F9DD);
            pool[to] = folded(own.wrapping_sub(other.wrapping_mul(0x4973_F715)));
        }
    }
    let mut hash = WordHash { factor: 0x8B51_F9DD, step: 0x58F3_8DED };
    let words: [u32; 2 * POOL] = std::array::from_fn(|idx| hash.of(pool[idx % POOL]));
    std::array::from_fn(|idx| u64::from(words[2 * idx + 1]) << 32 | u64::from(words[2 * idx]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_numpy() {
        let bound = i64::MAX as u64 / 99_092 / 2;
        let multipliers = |layer_idx: u64| {
            let mut random = NumpyRandom::new(10007 * layer_idx);
            [(); 4].map(|()| 2 * random.below(bound) + 1)
        };
        let first = [76632096046245, 4839876093313, 35959672319349, 73987337458391];
        assert_eq!(multipliers(1), first);
        let second = [67716810739261, 51510806800915, 30921347202721, 82619226485591];
        assert_eq!(multipliers(14), second);
    }
}
