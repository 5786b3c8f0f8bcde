//! LSTM cells with optional peephole connections, and layers that apply a cell to each step of a sequence.

use super::{beside, matrix, multiply, operand, set, sigmoid, sizes, times};
use crate::numeric::widen::from_wide;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Result, invalid};
use graph::{DType, Shape, Tensor};

/// The columns of the gates in the weights, in units of the cell's size: input, cell, forget and output gate.
#[derive(Clone, Copy, Debug)]
pub(super) struct GateOrder {
    input: usize,
    cell: usize,
    forget: usize,
    output: usize,
}

/// The order of LSTMBlockCell and BlockLSTM.
pub(super) const FIRST: GateOrder = GateOrder { input: 0, cell: 1, forget: 2, output: 3 };
/// The order of BlockLSTMV2.
pub(super) const SECOND: GateOrder = GateOrder { input: 0, cell: 2, forget: 1, output: 3 };

/// The attributes of a cell.
#[derive(Clone, Copy, Debug)]
struct CellAttrs {
    order: GateOrder,
    forget_bias: f32,
    /// The bound of the state's absolute value; none if it is not positive.
    clip: f32,
    has_peepholes: bool,
}

impl CellAttrs {
    fn of(init: &KernelInit<'_>, order: GateOrder) -> Result<CellAttrs> {
        let optional = |name: &str| match init.node.op.attr_spec(name) {
            Some(_) => init.attr::<f32>(name),
            None => Ok(0.0),
        };
        let (forget_bias, clip) = (optional("forget_bias")?, optional("cell_clip")?);
        Ok(CellAttrs { order, forget_bias, clip, has_peepholes: init.attr("use_peephole")? })
    }
}

/// The sizes of a cell.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    input: usize,
    cell: usize,
}

/// The operands of a cell that are the same in all steps.
struct Weights {
    /// The weights of the gates, `[input + cell, 4 * cell]`.
    gates: Tensor,
    /// The peepholes of the input, the forget and the output gate.
    peepholes: [Tensor; 3],
    bias: Tensor,
}

impl Weights {
    fn of(ctx: &KernelContext<'_>, first: usize, sizes: Sizes) -> Result<Weights> {
        let gates = times(sizes.cell, 4)?;
        let peephole = |at: usize, name: &str| operand(ctx, first + at, name, &[sizes.cell]);
        Ok(Weights {
            gates: operand(ctx, first, "w", &[sizes.input + sizes.cell, gates])?,
            peepholes: [peephole(1, "wci")?, peephole(2, "wcf")?, peephole(3, "wco")?],
            bias: operand(ctx, first + 4, "b", &[gates])?,
        })
    }
}

/// The values of a step, each `[batch, cell]`, in the order of the outputs: input gate, state, forget gate, output gate,
/// cell input, cell output, output.
type StepValues = [Vec<f32>; 7];

/// Computes a step of a cell.
fn step(
    sizes: Sizes,
    attrs: CellAttrs,
    weights: &Weights,
    x: &[f32],
    state: &[f32],
    output: &[f32],
) -> Result<StepValues> {
    let Sizes { batch, input, cell } = sizes;
    let mut values: StepValues = std::array::from_fn(|_| Vec::new());
    if batch * cell == 0 {
        return Ok(values);
    }
    let both = beside(x, input, output, cell, batch);
    let columns = 4 * cell;
    let mut gates = vec![0f32; batch * columns];
    let (a, b) = (matrix(&both, batch, input + cell), matrix(weights.gates.values()?, input + cell, columns));
    multiply(&mut gates, a, b, columns, false, batch * (input + cell) * columns);
    let bias = weights.bias.values::<f32>()?;
    let [to_input, to_forget, to_output] = &weights.peepholes;
    let (to_input, to_forget, to_output) =
        (to_input.values::<f32>()?, to_forget.values::<f32>()?, to_output.values::<f32>()?);
    let through = |weight: f32, state: f32| if attrs.has_peepholes { weight * state } else { 0.0 };
    for row in 0..batch {
        let gates = &gates[row * columns..(row + 1) * columns];
        for at in 0..cell {
            let gate = |gate: usize| gates[gate * cell + at] + bias[gate * cell + at];
            let before = state[row * cell + at];
            let entered = gate(attrs.order.cell).tanh();
            let i = sigmoid(gate(attrs.order.input) + through(to_input[at], before));
            let f = sigmoid(gate(attrs.order.forget) + attrs.forget_bias + through(to_forget[at], before));
            let mut after = i * entered + f * before;
            if attrs.clip > 0.0 {
                after = after.clamp(-attrs.clip, attrs.clip);
            }
            let shown = after.tanh();
            let o = sigmoid(gate(attrs.order.output) + through(to_output[at], after));
            for (values, value) in values.iter_mut().zip([i, after, f, o, entered, shown, o * shown]) {
                values.push(value);
            }
        }
    }
    Ok(values)
}

/// Makes the kernel of LSTMBlockCell.
pub(super) fn cell(init: &KernelInit<'_>) -> Result<Kernel> {
    let (attrs, dtype) = (CellAttrs::of(init, FIRST)?, init.output_type(0));
    Kernel::sync(move |ctx| {
        let [batch, input] = sizes(ctx, 0, "x")?;
        let [_, cell] = sizes(ctx, 1, "cs_prev")?;
        let sizes = Sizes { batch, input, cell };
        let x = operand(ctx, 0, "x", &[batch, input])?;
        let state = operand(ctx, 1, "cs_prev", &[batch, cell])?;
        let output = operand(ctx, 2, "h_prev", &[batch, cell])?;
        let weights = Weights::of(ctx, 3, sizes)?;
        let values = step(sizes, attrs, &weights, x.values()?, state.values()?, output.values()?)?;
        for (at, values) in values.iter().enumerate() {
            set(ctx, at, dtype, &[batch, cell], values)?;
        }
        Ok(())
    })
}

/// Returns the number of steps to compute, a scalar in input 0, after checking that it is at most `steps`.
fn step_count(ctx: &KernelContext<'_>, steps: usize) -> Result<usize> {
    let count = ctx.input(0)?;
    if count.shape().rank() != 0 {
        invalid!("`seq_len_max_tensor` must be rank 0 but is rank {}", count.shape().rank());
    }
    match usize::try_from(count.item::<i64>()?) {
        Ok(count) if count <= steps => Ok(count),
        _ => invalid!("seq_len_max must be from 0 to {steps}, not {}", count.item::<i64>()?),
    }
}

/// Makes the kernel of an LSTM layer: the cell is applied to each step of a sequence. Steps after `seq_len_max` are zero.
pub(super) fn layer(init: &KernelInit<'_>, order: GateOrder) -> Result<Kernel> {
    let (attrs, dtype) = (CellAttrs::of(init, order)?, init.output_type(0));
    Kernel::sync(move |ctx| {
        let [steps, batch, input] = sizes(ctx, 1, "x")?;
        let [_, cell] = sizes(ctx, 2, "cs_prev")?;
        let sizes = Sizes { batch, input, cell };
        let count = step_count(ctx, steps)?;
        let x = operand(ctx, 1, "x", &[steps, batch, input])?;
        let mut state = operand(ctx, 2, "cs_prev", &[batch, cell])?.values::<f32>()?.to_vec();
        let mut output = operand(ctx, 3, "h_prev", &[batch, cell])?.values::<f32>()?.to_vec();
        let weights = Weights::of(ctx, 4, sizes)?;
        let x = x.values::<f32>()?;
        // The memory is allocated before any step, because a sequence of empty inputs may have any length.
        let mut all = Vec::with_capacity(7);
        for _ in 0..7 {
            all.push(Tensor::zeros(DType::Float, Shape::new(&[steps, batch, cell])?)?);
        }
        let size = batch * cell;
        for at in 0..if size > 0 { count } else { 0 } {
            let x = &x[at * batch * input..(at + 1) * batch * input];
            let values = step(sizes, attrs, &weights, x, &state, &output)?;
            for (all, values) in all.iter_mut().zip(&values) {
                all.values_mut::<f32>()?[at * size..(at + 1) * size].copy_from_slice(values);
            }
            let [_, after, .., shown] = values;
            (state, output) = (after, shown);
        }
        for (at, values) in all.into_iter().enumerate() {
            let out = from_wide(values, dtype)?;
            ctx.set_output(at, out);
        }
        Ok(())
    })
}

/// The values of a step that its gradient needs, each `[batch, cell]`.
struct Taken<'a> {
    /// The state before the step.
    before: &'a [f32],
    input: &'a [f32],
    state: &'a [f32],
    forget: &'a [f32],
    output: &'a [f32],
    entered: &'a [f32],
    shown: &'a [f32],
}

/// The gradients of one step of a cell.
struct StepGradient {
    /// The gradient with respect to the state before the step, `[batch, cell]`.
    before: Vec<f32>,
    /// The gradient with respect to the gates before their activation functions, `[batch, 4 * cell]`.
    gates: Vec<f32>,
}

/// Computes the gradients of a step from the gradients with respect to its state and its output. The gradients of the
/// peepholes are added to `peepholes`.
fn step_gradient(
    sizes: Sizes,
    attrs: CellAttrs,
    weights: &Weights,
    taken: &Taken<'_>,
    [by_state, by_output]: [&[f32]; 2],
    peepholes: &mut [Vec<f32>; 3],
) -> Result<StepGradient> {
    let Sizes { batch, cell, .. } = sizes;
    let [to_input, to_forget, to_output] = &weights.peepholes;
    let (to_input, to_forget, to_output) =
        (to_input.values::<f32>()?, to_forget.values::<f32>()?, to_output.values::<f32>()?);
    let mut out = StepGradient { before: vec![0.0; batch * cell], gates: vec![0.0; 4 * batch * cell] };
    for row in 0..if cell > 0 { batch } else { 0 } {
        for at in 0..cell {
            let n = row * cell + at;
            let (i, f, o) = (taken.input[n], taken.forget[n], taken.output[n]);
            let (entered, shown) = (taken.entered[n], taken.shown[n]);
            let by_o = o * (1.0 - o) * by_output[n] * shown;
            let mut state = (1.0 - shown * shown) * by_output[n] * o + by_state[n];
            if attrs.has_peepholes {
                state += by_o * to_output[at];
            }
            let by_entered = (1.0 - entered * entered) * state * i;
            let by_f = f * (1.0 - f) * state * taken.before[n];
            let by_i = i * (1.0 - i) * state * entered;
            out.before[n] = state * f;
            if attrs.has_peepholes {
                out.before[n] += by_i * to_input[at] + by_f * to_forget[at];
                peepholes[0][at] += by_i * taken.before[n];
                peepholes[1][at] += by_f * taken.before[n];
                peepholes[2][at] += by_o * taken.state[n];
            }
            let GateOrder { input, cell: entry, forget, output } = attrs.order;
            for (gate, value) in [(input, by_i), (entry, by_entered), (forget, by_f), (output, by_o)] {
                out.gates[row * 4 * cell + gate * cell + at] = value;
            }
        }
    }
    Ok(out)
}

/// Makes the kernel of LSTMBlockCellGrad.
pub(super) fn cell_gradient(init: &KernelInit<'_>) -> Result<Kernel> {
    let (attrs, dtype) = (CellAttrs::of(init, FIRST)?, init.output_type(0));
    Kernel::sync(move |ctx| {
        let [batch, input] = sizes(ctx, 0, "x")?;
        let [_, cell] = sizes(ctx, 1, "cs_prev")?;
        let sizes = Sizes { batch, input, cell };
        let state = |at: usize, name: &str| operand(ctx, at, name, &[batch, cell]);
        let before = state(1, "cs_prev")?;
        state(2, "h_prev")?;
        let weights = Weights::of(ctx, 3, sizes)?;
        let values = [
            state(8, "i")?,
            state(9, "cs")?,
            state(10, "f")?,
            state(11, "o")?,
            state(12, "ci")?,
            state(13, "co")?,
        ];
        let (by_state, by_output) = (state(14, "cs_grad")?, state(15, "h_grad")?);
        let taken = Taken {
            before: before.values()?,
            input: values[0].values()?,
            state: values[1].values()?,
            forget: values[2].values()?,
            output: values[3].values()?,
            entered: values[4].values()?,
            shown: values[5].values()?,
        };
        let mut peepholes = std::array::from_fn(|_| vec![0.0; cell]);
        let gradients = [by_state.values::<f32>()?, by_output.values::<f32>()?];
        let out = step_gradient(sizes, attrs, &weights, &taken, gradients, &mut peepholes)?;
        set(ctx, 0, dtype, &[batch, cell], &out.before)?;
        set(ctx, 1, dtype, &[batch, 4 * cell], &out.gates)?;
        for (i, peephole) in peepholes.iter().enumerate() {
            set(ctx, 2 + i, dtype, &[cell], peephole)?;
        }
        Ok(())
    })
}

/// Makes the kernel of the gradient of an LSTM layer.
pub(super) fn layer_gradient(init: &KernelInit<'_>, order: GateOrder) -> Result<Kernel> {
    let (attrs, dtype) = (CellAttrs::of(init, order)?, init.output_type(0));
    Kernel::sync(move |ctx| layer_gradients(ctx, attrs, dtype))
}

fn layer_gradients(ctx: &mut KernelContext<'_>, attrs: CellAttrs, dtype: DType) -> Result<()> {
    let [steps, batch, input] = sizes(ctx, 1, "x")?;
    let [_, cell] = sizes(ctx, 2, "cs_prev")?;
    let all_sizes = Sizes { batch, input, cell };
    let count = step_count(ctx, steps)?;
    let x = operand(ctx, 1, "x", &[steps, batch, input])?;
    let first = [operand(ctx, 2, "cs_prev", &[batch, cell])?, operand(ctx, 3, "h_prev", &[batch, cell])?];
    let weights = Weights::of(ctx, 4, all_sizes)?;
    let names = ["i", "cs", "f", "o", "ci", "co", "h", "cs_grad", "h_grad"];
    let values = names.iter().enumerate().map(|(i, name)| operand(ctx, 9 + i, name, &[steps, batch, cell]));
    let values = values.collect::<Result<Vec<_>>>()?;
    let (size, columns) = (batch * cell, 4 * cell);
    let of_step = |at: usize, step: usize| -> Result<&[f32]> {
        Ok(&values[at].values::<f32>()?[step * size..(step + 1) * size])
    };
    let mut x_gradient = vec![0f32; steps * batch * input];
    let mut weight_gradient = vec![0f32; (input + cell) * columns];
    let mut bias_gradient = vec![0f32; columns];
    let mut peepholes = std::array::from_fn(|_| vec![0f32; cell]);
    let (mut by_state, mut by_output) = (vec![0f32; size], vec![0f32; size]);
    for step in (0..if size > 0 { count } else { 0 }).rev() {
        let before = if step > 0 { of_step(1, step - 1)? } else { first[0].values()? };
        let output_before = if step > 0 { of_step(6, step - 1)? } else { first[1].values()? };
        by_state.iter_mut().zip(of_step(7, step)?).for_each(|(sum, value)| *sum += value);
        by_output.iter_mut().zip(of_step(8, step)?).for_each(|(sum, value)| *sum += value);
        let taken = Taken {
            before,
            input: of_step(0, step)?,
            state: of_step(1, step)?,
            forget: of_step(2, step)?,
            output: of_step(3, step)?,
            entered: of_step(4, step)?,
            shown: of_step(5, step)?,
        };
        let gradients = [&by_state[..], &by_output[..]];
        let out = step_gradient(all_sizes, attrs, &weights, &taken, gradients, &mut peepholes)?;
        if size > 0 {
            let work = batch * (input + cell) * columns;
            let mut both = vec![0f32; batch * (input + cell)];
            let gates = matrix(&out.gates, batch, columns);
            let w = matrix(weights.gates.values()?, input + cell, columns).transposed();
            multiply(&mut both, gates, w, input + cell, false, work);
            for row in 0..batch {
                let (of_x, of_h) = both[row * (input + cell)..(row + 1) * (input + cell)].split_at(input);
                let to = (step * batch + row) * input;
                x_gradient[to..to + input].copy_from_slice(of_x);
                by_output[row * cell..(row + 1) * cell].copy_from_slice(of_h);
            }
            let x = &x.values::<f32>()?[step * batch * input..(step + 1) * batch * input];
            let joined = beside(x, input, output_before, cell, batch);
            let left = matrix(&joined, batch, input + cell).transposed();
            multiply(&mut weight_gradient, left, matrix(&out.gates, batch, columns), columns, true, work);
            for row in out.gates.chunks_exact(columns) {
                bias_gradient.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
        }
        by_state = out.before;
    }
    set(ctx, 0, dtype, &[steps, batch, input], &x_gradient)?;
    set(ctx, 1, dtype, &[batch, cell], &by_state)?;
    set(ctx, 2, dtype, &[batch, cell], &by_output)?;
    set(ctx, 3, dtype, &[input + cell, columns], &weight_gradient)?;
    for (i, peephole) in peepholes.iter().enumerate() {
        set(ctx, 4 + i, dtype, &[cell], peephole)?;
    }
    set(ctx, 7, dtype, &[columns], &bias_gradient)
}
