//! The layout of a chain's operands and values relative to the result's shape.

use super::Chain;
use crate::numeric::broadcast::Plan;
use device::kernel::KernelContext;
use graph::Shape;
use smallvec::SmallVec;

/// The maximum number of elements of a strip, so small that the loads of the next strip begin while the last op of the
/// current strip still computes.
const STRIP: usize = 512;

/// The layouts of a chain's operands and of its ops' values, relative to the shape of the chain's result.
pub(super) struct ChainLayout {
    /// The shape of the result.
    pub(super) shape: Shape,
    /// The number of elements of a strip, a run of the result that is computed at a time.
    pub(super) strip: usize,
    /// True if all repeating operands have one period that divides the strip length, so they are the same in every
    /// strip.
    pub(super) has_period: bool,
    pub(super) inputs: SmallVec<[OperandLayout; 8]>,
    pub(super) values: SmallVec<[OperandLayout; 16]>,
}

/// The layout of an operand or a value.
pub(super) enum OperandLayout {
    /// One element per element of the result.
    Whole,
    /// One element for all elements of the result.
    Single,
    /// Elements that repeat along the result, with the plan that broadcasts them to the result's shape.
    Spread(Plan),
}

impl ChainLayout {
    /// Returns the layout; `None` if the shapes do not fit, or if an intermediate value has neither the result's shape
    /// nor a single element.
    pub(super) fn of<F>(chain: &Chain<F>, ctx: &KernelContext<'_>) -> Option<ChainLayout> {
        let input_shapes = chain.input_shapes(ctx)?;
        if chain.has_one_shape(&input_shapes) {
            let inputs = input_shapes.iter().map(|_| OperandLayout::Whole).collect();
            let values = chain.ops.iter().map(|_| OperandLayout::Whole).collect();
            return Some(ChainLayout {
                shape: input_shapes[0].clone(),
                strip: STRIP,
                has_period: false,
                inputs,
                values,
            });
        }
        let shapes = chain.shapes(&input_shapes)?;
        let whole = shapes.last()?.clone();
        let place = |shape: &Shape| match shape {
            same if *same == whole => Some(OperandLayout::Whole),
            one if one.num_elements() == 1 => Some(OperandLayout::Single),
            _ => None,
        };
        let spread = |shape: &Shape| {
            let plan = Plan::fit(&whole, shape).ok()??;
            (*plan.shape() == whole).then_some(OperandLayout::Spread(plan))
        };
        let places = input_shapes.iter().map(|shape| place(shape).or_else(|| spread(shape)));
        let inputs = places.collect::<Option<SmallVec<[OperandLayout; 8]>>>()?;
        let values = shapes.iter().map(place).collect::<Option<_>>()?;
        let period = common_period(&inputs);
        let strip = period.map_or(STRIP, |period| STRIP / period * period);
        Some(ChainLayout { shape: whole, strip, has_period: period.is_some(), inputs, values })
    }
}

/// Returns the period, in elements, of all repeating operands; `None` if no operand repeats, if the periods differ, or
/// if the period is longer than a strip.
fn common_period(inputs: &[OperandLayout]) -> Option<usize> {
    let mut periods = inputs.iter().filter_map(|place| match place {
        OperandLayout::Spread(plan) => Some(plan.period()),
        OperandLayout::Whole | OperandLayout::Single => None,
    });
    let first = periods.next()?.filter(|period| (1..=STRIP).contains(period))?;
    periods.all(|other| other == Some(first)).then_some(first)
}
