//! The rules by which instructions compute their results: functions from operand bits to result bits, looked up by the
//! instruction's name. An instruction without a rule is not supported.

use crate::{convert, float, integer};

/// The function that computes an instruction's result. The variants differ in the number of operands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    One(fn(u64) -> u64),
    Two(fn(u64, u64) -> u64),
    Three(fn(u64, u64, u64) -> u64),
    Four(fn(u64, u64, u64, u64) -> u64),
    /// A function of two or three operands and the carry flag, which also returns the new carry flag.
    Carried(fn([u64; 3], bool) -> (u64, bool)),
}

impl Rule {
    /// Returns the rule of an instruction, whose name consists of operation, modifiers and type, such as `add.rn.f32`.
    pub(crate) fn of(name: &str) -> Option<Rule> {
        let parts: Vec<&str> = name.split('.').collect();
        let [operation, modifiers @ .., dtype] = &*parts else { return None };
        match (*operation, *dtype) {
            ("cvt", _) => convert::rule(modifiers, dtype),
            // Generic and global addresses are the same in this interpreter.
            ("cvta", _) => Some(Rule::One(|a| a)),
            (_, "pred") => integer::truth(operation),
            (_, "f32") => float::rule::<f32>(operation, modifiers),
            (_, "f64") => float::rule::<f64>(operation, modifiers),
            (_, "u16" | "b16") => integer::rule::<u16>(operation, modifiers),
            (_, "u32" | "b32") => integer::rule::<u32>(operation, modifiers),
            (_, "u64" | "b64") => integer::rule::<u64>(operation, modifiers),
            (_, "s16") => integer::rule::<i16>(operation, modifiers),
            (_, "s32") => integer::rule::<i32>(operation, modifiers),
            (_, "s64") => integer::rule::<i64>(operation, modifiers),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, operands: &[u64]) -> u64 {
        match (Rule::of(name), operands) {
            (Some(Rule::One(f)), &[a]) => f(a),
            (Some(Rule::Two(f)), &[a, b]) => f(a, b),
            (Some(Rule::Three(f)), &[a, b, c]) => f(a, b, c),
            (Some(Rule::Four(f)), &[a, b, c, d]) => f(a, b, c, d),
            (Some(Rule::Carried(f)), &[a, b, c]) => f([a, b, c], true).0,
            (rule, _) => panic!("{name} is {rule:?}"),
        }
    }

    #[test]
    fn integers_wrap_at_their_width() {
        let minus = |x: i64| x as u64;
        assert_eq!(run("add.s32", &[u64::from(u32::MAX), 1]), 0);
        assert_eq!(run("sub.s32", &[0, 1]), u64::from(u32::MAX));
        assert_eq!(run("mul.wide.s32", &[minus(-3), 5]), minus(-15));
        assert_eq!(run("mul.wide.u32", &[u64::from(u32::MAX), 2]), 2 * u64::from(u32::MAX));
        assert_eq!(run("mul.hi.u64", &[u64::MAX, u64::MAX]), u64::MAX - 1);
        assert_eq!(run("mul.hi.s64", &[minus(-1), 1]), u64::MAX);
        assert_eq!(run("div.s64", &[minus(-7), 2]), minus(-3));
        assert_eq!(run("rem.s64", &[minus(-7), 2]), minus(-1));
        assert_eq!(run("shl.b32", &[1, 32]), 0);
        assert_eq!(run("shr.s64", &[minus(-8), 70]), u64::MAX);
        assert_eq!(run("shr.u32", &[0x8000_0000, 31]), 1);
        assert_eq!(run("max.s32", &[minus(-1), 0]), 0);
        assert_eq!(run("clz.b64", &[1]), 63);
        assert_eq!(run("bfi.b64", &[5, 1, 32, 32]), 5 << 32 | 1);
        assert_eq!(run("prmt.b32", &[0x3322_1100, 0x7766_5544, 4180]), 0x1100_5544);
        assert_eq!(run("setp.lt.s32", &[u64::from(u32::MAX), 0]), 1);
        assert_eq!(run("setp.lt.u32", &[u64::from(u32::MAX), 0]), 0);
        assert_eq!(run("not.pred", &[1]), 0);
        assert_eq!(run("selp.b32", &[3, 4, 0]), 4);
    }

    #[test]
    fn carry_flag_is_passed_on() {
        let Some(Rule::Carried(add)) = Rule::of("add.cc.u32") else { panic!("none") };
        assert_eq!(add([u64::from(u32::MAX), 1, 0], false), (0, true));
        assert_eq!(run("addc.u32", &[1, 1, 0]), 3);
        assert_eq!(run("subc.u32", &[5, 1, 0]), 3);
        assert_eq!(run("madc.hi.u32", &[1 << 31, 2, 7]), 9);
    }

    #[test]
    fn floats_follow_the_rounding_modifier() {
        let bits = |x: f32| u64::from(x.to_bits());
        assert_eq!(run("add.rn.f32", &[bits(1.0), bits(2.0)]), bits(3.0));
        let (big, small) = (bits(16_777_216.0), bits(0.5));
        assert_eq!(run("add.rz.f32", &[big, small]), big);
        assert_eq!(run("fma.rm.f32", &[bits(-1.0), small, big]), bits(16_777_215.0));
        assert_eq!(run("fma.rz.f32", &[bits(-1.0), small, bits(-16_777_216.0)]), bits(-16_777_216.0));
        assert_eq!(run("add.rz.f64", &[1f64.to_bits(), (-1e-30f64).to_bits()]), 1f64.to_bits() - 1);
        assert_eq!(run("ex2.approx.ftz.f32", &[bits(-140.0)]), 0);
        assert_ne!(run("ex2.approx.f32", &[bits(-140.0)]), 0);
        assert_eq!(run("max.f32", &[bits(f32::NAN), bits(1.0)]), bits(1.0));
        assert_eq!(run("copysign.f32", &[bits(-0.0), bits(2.0)]), bits(-2.0));
        for (name, expected) in [("eq", 0), ("ne", 0), ("neu", 1), ("ltu", 1), ("num", 0), ("nan", 1)] {
            assert_eq!(run(&format!("setp.{name}.f32"), &[bits(f32::NAN), bits(1.0)]), expected, "{name}");
        }
    }

    #[test]
    fn conversions_saturate_at_the_target_range() {
        let bits = |x: f32| u64::from(x.to_bits());
        assert_eq!(run("cvt.rzi.s32.f32", &[bits(-1.9)]) as i32, -1);
        assert_eq!(run("cvt.rni.s32.f32", &[bits(2.5)]), 2);
        assert_eq!(run("cvt.rzi.s32.f32", &[bits(1e20)]) as i32, i32::MAX);
        assert_eq!(run("cvt.rzi.u32.f32", &[bits(-1.0)]), 0);
        assert_eq!(run("cvt.rzi.s32.f32", &[bits(f32::NAN)]), 0);
        assert_eq!(run("cvt.rzi.s64.f32", &[bits(f32::NAN)]), 1 << 63);
        assert_eq!(run("cvt.rzi.s32.f64", &[f64::NAN.to_bits()]), 1 << 31);
        assert_eq!(run("cvt.rmi.f32.f32", &[bits(-0.5)]), bits(-1.0));
        assert_eq!(run("cvt.sat.f32.f32", &[bits(7.0)]), bits(1.0));
        assert_eq!(run("cvt.s64.s32", &[u64::from(u32::MAX)]), u64::MAX);
        assert_eq!(run("cvt.u64.u32", &[u64::MAX]), u64::from(u32::MAX));
        assert_eq!(run("cvt.rn.f16.f32", &[bits(1.0)]), 0x3c00);
        assert_eq!(run("cvt.f32.f16", &[0x3c00]), bits(1.0));
    }

    #[test]
    fn unknown_opcodes_have_no_rule() {
        for name in ["add", "tanh.approx.f32", "add.f128", "setp.odd.s32", "cvt.f32", "mul.s32"] {
            assert!(Rule::of(name).is_none(), "{name}");
        }
    }
}
