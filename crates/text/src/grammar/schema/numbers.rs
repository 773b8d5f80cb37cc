//! Rewrites bounds and multiples of numbers where the compiler reads them differently.

use serde_json::{Map, Number, Value, json};

/// Largest number up to which a 64-bit float holds every whole number.
pub(super) const EXACT_MAX: u64 = 1 << 53;
/// Least number above 0 that is generated where 0 itself is excluded: a bound with many more
/// digits would make the compiler nest as many groups.
const ABOVE_ZERO: f64 = 1e-30;
/// Maximum coefficient of a multiple. The compiler may visit every remainder, which takes a second for
/// this many of them, and minutes for fifty times as many.
const COEFFICIENT_MAX: u64 = 20_000;
/// Maximum coefficient of a multiple whose digits but the first two are zeros, for which the compiler
/// visits few remainders: ten of them, and a digit, must fit into 32 bits.
const ROUND_COEFFICIENT_MAX: u64 = 300_000_000;
/// Maximum number of decimal places of a multiple.
const PLACES_MAX: u32 = 8;
/// Distance, in neighbouring floats, at which one is looked for that the compiler reads as wanted.
const NEIGHBOURS: usize = 16;

/// Returns 2^53 in place of an upper bound above it, and -2^53 in place of a lower bound below it;
/// `None` if the bound stays as it is. Schemas of 64-bit integers and of floats state such bounds,
/// and the compiler computes bounds as 64-bit integers.
pub(super) fn nearest_exact_bound(keyword: &str, bound: f64) -> Option<Value> {
    let limit = EXACT_MAX as f64;
    match keyword {
        "maximum" | "exclusiveMaximum" => (limit < bound).then(|| json!(EXACT_MAX)),
        _ => (bound < -limit).then(|| json!(-limit)),
    }
}

/// Replaces exclusive bounds that are whole numbers by inclusive ones beside them. The compiler
/// ignores that a bound is exclusive if both bounds have the same whole part, as in (5, 5.75] or
/// [-0.5, 0), also where it intersects several schemas.
pub(super) fn make_bounds_inclusive(members: &mut Map<String, Value>) {
    let exclusive = exclusive_bound(members, "exclusiveMinimum", "minimum");
    if let Some(bound) = exclusive.filter(|it| 0.0 <= *it && it.fract() == 0.0) {
        members.shift_remove("exclusiveMinimum");
        let least = members.get("minimum").and_then(Value::as_f64).unwrap_or(f64::MIN);
        members.insert("minimum".to_owned(), json!(least.max(above(bound))));
    }
    let exclusive = exclusive_bound(members, "exclusiveMaximum", "maximum");
    if let Some(bound) = exclusive.filter(|it| *it <= 0.0 && it.fract() == 0.0) {
        members.shift_remove("exclusiveMaximum");
        let most = members.get("maximum").and_then(Value::as_f64).unwrap_or(f64::MAX);
        members.insert("maximum".to_owned(), json!(most.min(-above(-bound))));
    }
}

/// Returns an exclusive bound. That of draft 4, a boolean beside the bound, becomes a number.
fn exclusive_bound(
    members: &mut Map<String, Value>,
    exclusive: &str,
    inclusive: &str,
) -> Option<f64> {
    if let Some(is_exclusive) = members.get(exclusive)?.as_bool() {
        members.shift_remove(exclusive);
        let bound = members.get(inclusive).filter(|_| is_exclusive)?.clone();
        members.insert(exclusive.to_owned(), bound);
    }
    members[exclusive].as_f64()
}

/// Returns the least number above `bound`, which is not negative; infinity if there is none.
fn above(bound: f64) -> f64 {
    if bound == 0.0 {
        return ABOVE_ZERO;
    }
    let numbers = std::iter::successors(Some(bound.next_up()), |it| Some(it.next_up()));
    let is_above = |it: &f64| read_again(*it).is_some_and(|again| bound < again);
    numbers.take(NEIGHBOURS).find(is_above).unwrap_or(f64::INFINITY)
}

/// Returns a number after it was written and read again: grammars hold schemas as text, which is
/// not read as exactly the same number.
fn read_again(number: f64) -> Option<f64> {
    serde_json::from_str(&json!(number).to_string()).ok()
}

/// A positive number, as `coefficient` divided by ten to the power of `places`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Multiple {
    coefficient: u64,
    places: u32,
}

impl Multiple {
    /// Reads the shortest decimal that stands for the number. `None` if it has too many digits.
    pub(super) fn read(number: &Number) -> Option<Multiple> {
        let text = number.to_string();
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let coefficient: u64 = format!("{whole}{fraction}").parse().ok()?;
        let places = i32::try_from(fraction.len()).ok()? - exponent.parse::<i32>().ok()?;
        let multiple = if places < 0 {
            let coefficient =
                coefficient.checked_mul(10_u64.checked_pow(places.unsigned_abs())?)?;
            Multiple { coefficient, places: 0 }
        } else {
            Multiple { coefficient, places: places.unsigned_abs() }.reduced()
        };
        multiple.is_small().then_some(multiple)
    }

    fn reduced(mut self) -> Multiple {
        while 0 < self.places && self.coefficient.is_multiple_of(10) && self.coefficient != 0 {
            self.coefficient /= 10;
            self.places -= 1;
        }
        self
    }

    fn is_small(self) -> bool {
        let trailing = std::iter::successors(Some(self.coefficient), |it| {
            (*it != 0 && it.is_multiple_of(10)).then_some(it / 10)
        });
        let is_round = trailing.last().is_some_and(|digits| digits < 100);
        let limit = if is_round { ROUND_COEFFICIENT_MAX } else { COEFFICIENT_MAX };
        self.coefficient <= limit && self.places <= PLACES_MAX
    }

    /// Returns multiples that the compiler reads as they are meant, and of which this is the least
    /// common one. It is one number or, where none is read as this multiple, a pair of them: 0.57
    /// is the least common multiple of 0.03 and 0.19. About one decimal in twenty has neither,
    /// such as 0.53: 53 is prime, and dividing by twos and fives changes no rounding.
    pub(super) fn as_compiled(self) -> Option<Vec<f64>> {
        if let Some(number) = self.as_number() {
            return Some(vec![number]);
        }
        let factors = (2_u64..).take_while(|it| it * it < self.coefficient);
        let factors = factors.filter(|it| self.coefficient.is_multiple_of(*it));
        let pairs = factors.map(|it| (it, self.coefficient / it));
        let mut coprime = pairs.filter(|(left, right)| common_divisor(*left, *right) == 1);
        coprime.find_map(|(left, right)| {
            let (left, right) = (self.with(left), self.with(right));
            let pair = vec![left.as_number()?, right.as_number()?];
            are_combinable(&[left, right]).then_some(pair)
        })
    }

    fn with(self, coefficient: u64) -> Multiple {
        Multiple { coefficient, places: self.places }.reduced()
    }

    /// Returns a number that the compiler reads as this multiple. It multiplies floats by ten until
    /// they are whole, and the rounding of these steps makes it read 0.07 as a number of 16 digits;
    /// a neighbour of 0.07 is rounded to 7. For about one decimal in seven, such as 0.57, no float
    /// is.
    fn as_number(self) -> Option<f64> {
        let nearest: f64 =
            format!("{}e-{}", self.coefficient, self.places).parse().expect("a decimal is a float");
        let ups = std::iter::successors(Some(nearest), |it| Some(it.next_up()));
        let downs = std::iter::successors(Some(nearest), |it| Some(it.next_down()));
        let is_read = |it: f64| read_by_compiler(it) == Some(self);
        let mut numbers = ups.take(NEIGHBOURS).chain(downs.take(NEIGHBOURS));
        numbers.find(|it| is_read(*it) && read_again(*it).is_some_and(is_read))
    }
}

/// Whether the compiler can compute the least common multiple of these in any order, also with some
/// of them repeated: the products of its steps must fit into 32 bits. The largest is that of the
/// least common multiple and the largest number.
pub(super) fn are_combinable(multiples: &[Multiple]) -> bool {
    let places = multiples.iter().map(|it| it.places).max().unwrap_or(0);
    let scaled = |it: &Multiple| it.coefficient.checked_mul(10_u64.pow(places - it.places));
    let Some(scaled) = multiples.iter().map(scaled).collect::<Option<Vec<u64>>>() else {
        return false;
    };
    let common = scaled.iter().try_fold(1_u64, |common, it| {
        common.checked_mul(it / common_divisor(common, *it)).filter(|it| *it <= u32::MAX.into())
    });
    let largest = scaled.iter().max().copied().unwrap_or(0);
    common.is_some_and(|common| {
        let is_small = Multiple { coefficient: common, places }.reduced().is_small();
        is_small && common.checked_mul(largest).is_some_and(|it| it <= u32::MAX.into())
    })
}

/// Returns the multiple of a prepared schema and those of its `allOf` that have no other keyword.
pub(super) fn multiples_at(members: &Map<String, Value>) -> Vec<Multiple> {
    let all = members.get("allOf").and_then(Value::as_array).into_iter().flatten();
    let parts = all.filter(|it| is_only_multiple(it)).filter_map(Value::as_object);
    let numbers = std::iter::once(members).chain(parts).filter_map(|it| it.get("multipleOf"));
    numbers.filter_map(|it| read_by_compiler(it.as_f64()?)).collect()
}

/// Whether a schema has no keyword but `multipleOf`.
pub(super) fn is_only_multiple(schema: &Value) -> bool {
    schema.as_object().is_some_and(|it| it.len() == 1 && it.contains_key("multipleOf"))
}

/// Reads a number as the compiler does (`Decimal::try_from` of llguidance).
fn read_by_compiler(mut number: f64) -> Option<Multiple> {
    let mut places = 0;
    while number.fract() != 0.0 {
        if PLACES_MAX < places {
            return None;
        }
        number *= 10.0;
        places += 1;
    }
    let is_small = number <= ROUND_COEFFICIENT_MAX as f64;
    is_small.then(|| Multiple { coefficient: number as u64, places }.reduced())
}

fn common_divisor(left: u64, right: u64) -> u64 {
    if right == 0 { left } else { common_divisor(right, left % right) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn multiple(number: f64) -> Option<Multiple> {
        Multiple::read(json!(number).as_number().expect("a number"))
    }

    /// Returns the least common multiple, times a thousand, of numbers as the compiler reads them.
    fn common_thousandths(numbers: &[f64]) -> u64 {
        numbers.iter().fold(1, |common, number| {
            let read = read_by_compiler(*number).expect("the compiler reads it");
            let thousandths = read.coefficient * 10_u64.pow(3 - read.places);
            common / common_divisor(common, thousandths) * thousandths
        })
    }

    #[test]
    fn the_compiler_reads_multiples_as_they_are_written_or_they_are_refused() {
        let (mut num_pairs, mut num_refused) = (0, 0);
        for thousandths in 1..10_000_u64 {
            let number: f64 = format!("{thousandths}e-3").parse().unwrap();
            match multiple(number).unwrap().as_compiled() {
                None => num_refused += 1,
                Some(numbers) => {
                    assert_eq!(common_thousandths(&numbers), thousandths, "{number}");
                    num_pairs += usize::from(numbers.len() == 2);
                }
            }
        }
        assert_eq!((num_pairs, num_refused), (680, 480));
        for usual in [0.001, 0.01, 0.02, 0.05, 0.07, 0.1, 0.2, 0.25, 0.3, 0.5, 1.0, 1.5, 100.0] {
            assert!(multiple(usual).and_then(Multiple::as_compiled).is_some(), "{usual}");
        }
        assert_eq!(multiple(1e-300), None);
        assert_eq!(multiple(0.123_456_789), None);
        assert_eq!(multiple(1e9), None);
    }

    #[test]
    fn the_number_above_a_bound_is_above_it_when_read_again() {
        for bound in (1..2000).map(f64::from).chain([1e9, 1e15, 9_007_199_254_740_992.0]) {
            assert!(bound < read_again(above(bound)).unwrap(), "{bound}");
        }
    }

    #[test]
    fn multiples_are_combinable_if_all_orders_of_computing_stay_within_32_bits() {
        let combinable = |numbers: &[f64]| {
            let multiples: Option<Vec<_>> = numbers.iter().map(|it| multiple(*it)).collect();
            are_combinable(&multiples.unwrap())
        };
        assert!(combinable(&[]));
        assert!(combinable(&[0.5, 0.3]));
        assert!(combinable(&[14.0, 0.3, 0.01]));
        assert!(!combinable(&[19_997.0, 19_991.0]));
        assert!(!combinable(&[1_000_000.0, 0.000_01]));
        // The steps fit in the order 15000, 20000, 49, but not in the order 49, 15000, 20000.
        assert!(!combinable(&[15_000.0, 20_000.0, 49.0]));
    }
}
