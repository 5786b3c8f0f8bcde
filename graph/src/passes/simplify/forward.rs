//! Rules for nodes that forward their input.

use super::Simplification::{Arithmetic, Forwarding};
use super::rule::{Rewrite, Rule};
use super::site::Site;
use crate::dtype::DType;

pub(super) const RULES: &[Rule] = &[
    Rule {
        ops: &["Identity", "PreventGradient", "Snapshot", "StopGradient"],
        kind: Forwarding,
        apply: |site| Rewrite::same(site.input(0)?),
    },
    Rule { ops: &["AddN"], kind: Forwarding, apply: sum_of_one },
    Rule { ops: &["Cast"], kind: Arithmetic, apply: cast_to_the_same },
    Rule { ops: &["Cast"], kind: Arithmetic, apply: cast_of_cast },
    Rule { ops: &["Conj", "Invert", "LogicalNot", "Neg"], kind: Arithmetic, apply: self_inverse_twice },
];

fn sum_of_one(site: &Site<'_>) -> Option<Rewrite> {
    let &[input] = site.inputs.as_slice() else { return None };
    Rewrite::same(input)
}

fn cast_to_the_same(site: &Site<'_>) -> Option<Rewrite> {
    if site.attr::<DType>("SrcT")? != site.attr::<DType>("DstT")? {
        return None;
    }
    Rewrite::same(site.input(0)?)
}

/// Combines two casts, if the middle type holds every value of the first, and all three are integers, all three are
/// floating-point, or the first and last are equal.
fn cast_of_cast(site: &Site<'_>) -> Option<Rewrite> {
    let inner = site.producer_of(site.input(0)?, &["Cast"])?;
    let (from, by, to) = (inner.attr("SrcT")?, inner.attr("DstT")?, site.attr::<DType>("DstT")?);
    let is_one_kind = from == to
        || [from, by, to].iter().all(|t| t.is_integer())
        || [from, by, to].iter().all(|t| t.is_floating());
    if !is_one_kind || !holds(by, from) {
        return None;
    }
    let source = inner.input(0)?;
    let rewrite = match from == to {
        true => Rewrite::same(source),
        false => {
            let truncate = site.attr::<bool>("Truncate").unwrap_or_default();
            let attrs = [("SrcT", from.into()), ("DstT", to.into()), ("Truncate", truncate.into())];
            Rewrite::other("Cast", attrs, [super::rule::Input::From(source)])
        }
    };
    Some(rewrite?.bypassing(&inner))
}

/// Returns whether each value of the type `from` is representable in the type `by`.
fn holds(by: DType, from: DType) -> bool {
    use DType::*;
    let bits = |dtype: DType| dtype.size().unwrap_or(0) * 8;
    match (from, by) {
        _ if from == by => true,
        (Half | BFloat16, Float | Double) | (Float, Double) => true,
        _ if from.is_signed_integer() && by.is_signed_integer() => bits(from) <= bits(by),
        _ if from.is_unsigned_integer() && by.is_integer() => bits(from) < bits(by),
        (Int8 | UInt8, Half | BFloat16) => true,
        (Int8 | UInt8 | Int16 | UInt16, Float | Double) | (Int32 | UInt32, Double) => true,
        (Bool, _) => by.is_integer() || by.is_floating(),
        _ => false,
    }
}

/// Rewrites `f(f(x))` to `x`, where the op `f` is its own inverse.
fn self_inverse_twice(site: &Site<'_>) -> Option<Rewrite> {
    let inner = site.producer_of(site.input(0)?, &[site.op()])?;
    Some(Rewrite::same(inner.input(0)?)?.bypassing(&inner))
}
