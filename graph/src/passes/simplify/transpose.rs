//! Rules for transpositions that have no effect, and for two transpositions in a row. A transposition is not folded
//! into a matrix product, because the kernel might then add the terms in another order and round differently.

use super::Simplification::{Arithmetic, Constants};
use super::rule::{Input, Rewrite, Rule};
use super::site::Site;
use crate::infer::integers;
use crate::ops::transpose::permutation;

pub(super) const RULES: &[Rule] = &[
    Rule { ops: &["Transpose"], kind: Constants, apply: keeps_order },
    Rule { ops: &["Transpose"], kind: Arithmetic, apply: transpose_of_transpose },
];

/// Rewrites a transposition to its input, if it moves only axes of size 1.
fn keeps_order(site: &Site<'_>) -> Option<Rewrite> {
    let x = site.input(0)?;
    let order = order(site, site)?;
    let is_in_place = order.iter().enumerate().all(|(at, from)| at == *from);
    let shape = site.shape(x);
    let matters = |axis: &&usize| shape.dim(**axis) != Some(1);
    let is_in_order = || {
        shape.is_fully_defined()
            && shape == site.shape(site.output())
            && order.iter().filter(matters).is_sorted()
    };
    if is_in_place || is_in_order() { Rewrite::same(x) } else { None }
}

/// Returns for each output axis of a transposition the input axis from which its elements are taken.
fn order(site: &Site<'_>, transpose: &Site<'_>) -> Option<Vec<usize>> {
    let given = site.integers(transpose.input(1)?)?;
    permutation(&given, given.len()).ok()
}

fn transpose_of_transpose(site: &Site<'_>) -> Option<Rewrite> {
    let inner = site.producer_of(site.input(0)?, &["Transpose"])?;
    let (outer_order, inner_order) = (order(site, site)?, order(site, &inner)?);
    let x = inner.input(0)?;
    let both = outer_order.iter().map(|axis| inner_order.get(*axis).map(|axis| *axis as i64));
    let both: Vec<i64> = both.collect::<Option<_>>()?;
    let rewrite = match both.iter().enumerate().all(|(at, from)| at as i64 == *from) {
        true => Rewrite::same(x),
        false => {
            let tperm = site.attr::<crate::DType>("Tperm")?;
            let attrs = [("T", site.dtype()?.into()), ("Tperm", tperm.into())];
            Rewrite::other("Transpose", attrs, [Input::From(x), Input::Constant(integers(tperm, both)?)])
        }
    };
    Some(rewrite?.bypassing(&inner))
}
