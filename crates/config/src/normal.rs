//! The normal distribution, for configurations that state a share where a layer needs a quantile.

/// Coefficients of a ratio of polynomials, from the highest power on.
struct Ratio {
    numerator: [f64; 8],
    denominator: [f64; 8],
}

/// For probabilities near one half.
const CENTRE: Ratio = Ratio {
    numerator: [
        2_509.080_928_730_122_7,
        33_430.575_583_588_13,
        67_265.770_927_008_7,
        45_921.953_931_549_87,
        13_731.693_765_509_46,
        1_971.590_950_306_551_3,
        133.141_667_891_784_38,
        3.387_132_872_796_366_5,
    ],
    denominator: [
        5_226.495_278_852_854,
        28_729.085_735_721_943,
        39_307.895_800_092_71,
        21_213.794_301_586_597,
        5_394.196_021_424_751,
        687.187_007_492_057_9,
        42.313_330_701_600_91,
        1.0,
    ],
};

/// For probabilities further away.
const MIDDLE: Ratio = Ratio {
    numerator: [
        0.000_774_545_014_278_341_4,
        0.022_723_844_989_269_184,
        0.241_780_725_177_450_6,
        1.270_458_252_452_368_4,
        3.647_848_324_763_204_5,
        5.769_497_221_460_691,
        4.630_337_846_156_546,
        1.423_437_110_749_683_5,
    ],
    denominator: [
        1.0507500716444169e-09,
        0.000_547_593_808_499_534_5,
        0.015_198_666_563_616_457,
        0.148_103_976_427_480_08,
        0.689_767_334_985_1,
        1.676_384_830_183_803_8,
        2.053_191_626_637_759,
        1.0,
    ],
};

/// For probabilities near 0 or 1.
const TAIL: Ratio = Ratio {
    numerator: [
        2.0103343992922881e-07,
        2.7115555687434876e-05,
        0.001_242_660_947_388_078_4,
        0.026_532_189_526_576_124,
        0.296_560_571_828_504_87,
        1.784_826_539_917_291_3,
        5.463_784_911_164_114,
        6.657_904_643_501_103,
    ],
    denominator: [
        2.0442631033899397e-15,
        1.421511758316446e-07,
        1.8463183175100548e-05,
        0.000_786_869_131_145_613_3,
        0.014_875_361_290_850_615,
        0.136_929_880_922_735_8,
        0.599_832_206_555_888,
        1.0,
    ],
};

impl Ratio {
    fn at(&self, x: f64) -> f64 {
        let value = |coefficients: &[f64]| coefficients.iter().fold(0.0, |sum, it| sum * x + it);
        value(&self.numerator) / value(&self.denominator)
    }
}

/// Returns the number below which a part `p` of the standard normal distribution lies, for `p` above 0
/// and below 1 (Wichura 1988, algorithm AS 241).
pub fn quantile(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        return q * CENTRE.at(0.180_625 - q * q);
    }
    let tail = if q < 0.0 { p } else { 1.0 - p };
    let r = (-tail.ln()).sqrt();
    let value = if r <= 5.0 { MIDDLE.at(r - 1.6) } else { TAIL.at(r - 5.0) };
    value.copysign(q)
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_are_those_of_tables() {
        let known = [
            (0.5, 0.0),
            (0.2, -0.8416212335729142),
            (0.95, 1.6448536269514715),
            (0.01, -2.3263478740408408),
            (1e-12, -7.034483825301132),
        ];
        for (p, expected) in known {
            assert!((quantile(p) - expected).abs() < 1e-12, "{p}: {}", quantile(p));
        }
    }
}
