//! Transpositions: such as change nothing, two in a row, and those that a product of matrices can do itself.

use super::Simplification::{Arithmetic, Constants};
use super::rule::{Input, Rewrite, Rule};
use super::site::Site;
use crate::attr::AttrValue;
use crate::graph::Output;
use crate::infer::integers;
use crate::ops::transpose::permutation;
use smallvec::SmallVec;

pub(super) const RULES: &[Rule] = &[
    Rule { ops: &["Transpose"], kind: Constants, apply: keeps_order },
    Rule { ops: &["Transpose"], kind: Arithmetic, apply: transpose_of_transpose },
    Rule { ops: &["MatMul"], kind: Arithmetic, apply: product_of_transposed },
    Rule { ops: &["BatchMatMul", "BatchMatMulV2"], kind: Arithmetic, apply: product_of_transposed },
];

/// Axes of one element may stand anywhere.
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

/// Which axis of its input each axis of a transposition is.
fn order(site: &Site<'_>, transpose: &Site<'_>) -> Option<Vec<usize>> {
    let given = site.integers(transpose.input(1)?)?;
    permutation(&given, given.len()).ok()
}

fn transpose_of_transpose(site: &Site<'_>) -> Option<Rewrite> {
    let inner = site.maker(site.input(0)?, &["Transpose"])?;
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
    Some(rewrite?.through(&inner))
}

/// Complex factors of a batch are conjugated as they are transposed.
fn product_of_transposed(site: &Site<'_>) -> Option<Rewrite> {
    let is_complex = site.dtype()?.is_complex();
    let (flags, ops): ([&'static str; 2], &[&str]) = match (site.op(), is_complex) {
        ("MatMul", true) => (["transpose_a", "transpose_b"], &["Transpose"]),
        ("MatMul", false) => (["transpose_a", "transpose_b"], &["ConjugateTranspose", "Transpose"]),
        (_, true) => (["adj_x", "adj_y"], &["ConjugateTranspose"]),
        (_, false) => (["adj_x", "adj_y"], &["ConjugateTranspose", "Transpose"]),
    };
    let mut through: SmallVec<[Site<'_>; 2]> = SmallVec::new();
    let mut attrs: Vec<(&'static str, AttrValue)> = Vec::new();
    let mut inputs: SmallVec<[Input; 2]> = SmallVec::new();
    for (slot, flag) in flags.into_iter().enumerate() {
        let factor = site.input(slot)?;
        let is_set = site.attr::<bool>(flag)?;
        let transposed = transposed(site, factor, ops);
        attrs.push((flag, (is_set != transposed.is_some()).into()));
        match transposed {
            Some((inner, matrix)) => {
                through.push(inner);
                inputs.push(Input::From(matrix));
            }
            None => inputs.push(Input::From(factor)),
        }
    }
    if through.is_empty() {
        return None;
    }
    let others = site.node.attrs.iter().filter_map(|(name, value)| {
        let name = site.node.op.attr_spec(name)?.name;
        (!flags.contains(&name)).then(|| (name, value.clone()))
    });
    attrs.extend(others);
    let rewrite = Rewrite::other(site.op(), attrs, inputs)?;
    Some(through.iter().fold(rewrite, |rewrite, inner| rewrite.through(inner)))
}

/// What makes the factor, if it exchanges the last two axes and no others, and what it exchanges them of.
fn transposed<'a>(site: &Site<'a>, factor: Output, ops: &[&str]) -> Option<(Site<'a>, Output)> {
    let inner = site.maker(factor, ops)?;
    let order = order(site, &inner)?;
    let rank = order.len();
    let exchanged = |at: usize| match rank - at {
        1 => rank.checked_sub(2),
        2 => Some(rank - 1),
        _ => Some(at),
    };
    let is_exchange = rank >= 2 && order.iter().enumerate().all(|(at, from)| exchanged(at) == Some(*from));
    let matrix = inner.input(0)?;
    is_exchange.then_some((inner, matrix))
}
