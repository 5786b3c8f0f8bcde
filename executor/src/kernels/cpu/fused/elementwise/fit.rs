//! How the shapes of a chain's operands and values fit the result's.

use super::Chain;
use crate::kernel::KernelContext;
use crate::kernels::cpu::broadcast::Plan;
use graph::Shape;
use smallvec::SmallVec;

/// Elements of a strip, at most: so few that the loads of one strip begin while the last op of the one before computes.
const STRIP: usize = 512;

/// Where each operand's and each value's elements are.
pub(super) struct Fit {
    pub(super) shape: Shape,
    /// Elements of a strip.
    pub(super) strip: usize,
    /// Spread operands are the same in every strip.
    pub(super) has_period: bool,
    pub(super) inputs: SmallVec<[Place; 8]>,
    pub(super) values: SmallVec<[Place; 16]>,
}

pub(super) enum Place {
    Whole,
    Single,
    /// How the result's shape and this one are walked together.
    Spread(Plan),
}

impl Fit {
    /// `None` where a value between ops is neither whole nor single, or the shapes do not fit.
    pub(super) fn of<F>(chain: &Chain<F>, ctx: &KernelContext<'_>) -> Option<Fit> {
        let given = chain.given(ctx)?;
        if chain.takes_as_one_shape(&given) {
            let inputs = given.iter().map(|_| Place::Whole).collect();
            let values = chain.ops.iter().map(|_| Place::Whole).collect();
            return Some(Fit { shape: given[0].clone(), strip: STRIP, has_period: false, inputs, values });
        }
        let shapes = chain.shapes(&given)?;
        let whole = shapes.last()?.clone();
        let place = |shape: &Shape| match shape {
            same if *same == whole => Some(Place::Whole),
            one if one.num_elements() == 1 => Some(Place::Single),
            _ => None,
        };
        let spread = |shape: &Shape| {
            let plan = Plan::fit(&whole, shape).ok()??;
            (*plan.shape() == whole).then_some(Place::Spread(plan))
        };
        let places = given.iter().map(|shape| place(shape).or_else(|| spread(shape)));
        let inputs = places.collect::<Option<SmallVec<[Place; 8]>>>()?;
        let values = shapes.iter().map(place).collect::<Option<_>>()?;
        let period = common_period(&inputs);
        let strip = period.map_or(STRIP, |period| STRIP / period * period);
        Some(Fit { shape: whole, strip, has_period: period.is_some(), inputs, values })
    }
}

/// After how many elements all spread operands begin anew, if there are any, and if a strip is as long.
fn common_period(inputs: &[Place]) -> Option<usize> {
    let mut periods = inputs.iter().filter_map(|place| match place {
        Place::Spread(plan) => Some(plan.period()),
        Place::Whole | Place::Single => None,
    });
    let first = periods.next()?.filter(|period| (1..=STRIP).contains(period))?;
    periods.all(|other| other == Some(first)).then_some(first)
}
