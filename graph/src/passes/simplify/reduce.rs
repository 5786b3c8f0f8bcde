//! Rules for reductions over no axes, or over axes of size 1.

use super::Simplification::Constants;
use super::rule::{Input, Rewrite, Rule};
use super::site::Site;
use crate::shape::resolve_axis;

pub(super) const RULES: &[Rule] = &[Rule {
    ops: &["All", "Any", "Max", "Mean", "Min", "Prod", "Sum"],
    kind: Constants,
    apply: reduces_nothing,
}];

/// Rewrites a reduction in which each result comes from a single element: to its input, or to a `Squeeze` of the
/// reduced axes.
fn reduces_nothing(site: &Site<'_>) -> Option<Rewrite> {
    let x = site.input(0)?;
    let axes = site.integers(site.input(1)?)?;
    if axes.is_empty() {
        return Rewrite::same(x);
    }
    let shape = site.shape(x);
    let mut single = Vec::with_capacity(axes.len());
    for axis in axes {
        let at = resolve_axis(axis, shape.rank()?)?;
        // A reduction that names an axis twice is left unchanged, because its kernel reports an error.
        if shape.dim(at) != Some(1) || single.contains(&(at as i64)) {
            return None;
        }
        single.push(at as i64);
    }
    if site.attr::<bool>("keep_dims")? {
        return Rewrite::same(x);
    }
    let attrs = [("T", site.dtype()?.into()), ("squeeze_dims", single.into())];
    Rewrite::other("Squeeze", attrs, [Input::From(x)])
}
