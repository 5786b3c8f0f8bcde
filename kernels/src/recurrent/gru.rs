//! GRU cells.

use super::{beside, matrix, multiply, operand, set, sigmoid, sizes, times};
use device::Result;
use device::kernel::KernelContext;
use graph::DType::Float;
use graph::Tensor;

/// The operands of a cell and their sizes.
struct Cell {
    batch: usize,
    input: usize,
    cell: usize,
    x: Tensor,
    before: Tensor,
    /// The weights of the reset and the update gate, `[input + cell, 2 * cell]`.
    gates: Tensor,
    /// The weights of the new state, `[input + cell, cell]`.
    state: Tensor,
    gates_bias: Tensor,
    state_bias: Tensor,
}

impl Cell {
    fn of(ctx: &KernelContext<'_>) -> Result<Cell> {
        let [batch, input] = sizes(ctx, 0, "x")?;
        let [_, cell] = sizes(ctx, 1, "h_prev")?;
        let double = times(cell, 2)?;
        Ok(Cell {
            batch,
            input,
            cell,
            x: operand(ctx, 0, "x", &[batch, input])?,
            before: operand(ctx, 1, "h_prev", &[batch, cell])?,
            gates: operand(ctx, 2, "w_ru", &[input + cell, double])?,
            state: operand(ctx, 3, "w_c", &[input + cell, cell])?,
            gates_bias: operand(ctx, 4, "b_ru", &[double])?,
            state_bias: operand(ctx, 5, "b_c", &[cell])?,
        })
    }

    /// Returns `[x, h] w + b`, where `[x, h]` has the columns of the input followed by those of `h`.
    fn product(&self, h: &[f32], w: &Tensor, b: &Tensor, columns: usize) -> Result<Vec<f32>> {
        let (rows, inner) = (self.batch, self.input + self.cell);
        let mut out: Vec<f32> = (0..if columns > 0 { rows } else { 0 })
            .flat_map(|_| b.values::<f32>().unwrap_or_default())
            .copied()
            .collect();
        if !out.is_empty() {
            let both = beside(self.x.values()?, self.input, h, self.cell, rows);
            let w = matrix(w.values()?, inner, columns);
            multiply(&mut out, matrix(&both, rows, inner), w, columns, true, rows * inner * columns);
        }
        Ok(out)
    }

    /// Returns `d wᵀ`, split into the columns of the input and those of the state.
    fn back(&self, d: &[f32], w: &Tensor, columns: usize) -> Result<(Vec<f32>, Vec<f32>)> {
        let (rows, inner) = (self.batch, self.input + self.cell);
        let mut both = vec![0f32; rows * inner];
        if rows * columns > 0 {
            let w = matrix(w.values()?, inner, columns).transposed();
            multiply(&mut both, matrix(d, rows, columns), w, inner, false, rows * inner * columns);
        }
        let (mut of_x, mut of_h) = (Vec::new(), Vec::new());
        for row in both.chunks_exact(inner.max(1)) {
            of_x.extend_from_slice(&row[..self.input]);
            of_h.extend_from_slice(&row[self.input..]);
        }
        Ok((of_x, of_h))
    }
}

/// `GRUBlockCell`: computes the reset gate, the update gate, the candidate state and the new state.
pub(super) fn cell(ctx: &mut KernelContext<'_>) -> Result<()> {
    let all = Cell::of(ctx)?;
    let (batch, cell) = (all.batch, all.cell);
    let before = all.before.values::<f32>()?;
    let gates = all.product(before, &all.gates, &all.gates_bias, 2 * cell)?;
    let part = |first: usize| -> Vec<f32> {
        let rows = gates.chunks_exact((2 * cell).max(1));
        rows.flat_map(|row| row[first..first + cell].iter().map(|&x| sigmoid(x))).collect()
    };
    let (reset, update) = (part(0), part(cell));
    let kept: Vec<f32> = reset.iter().zip(before).map(|(r, h)| r * h).collect();
    let mut candidate = all.product(&kept, &all.state, &all.state_bias, cell)?;
    candidate.iter_mut().for_each(|c| *c = c.tanh());
    let blend = |((u, h), c): ((&f32, &f32), &f32)| u * h + (1.0 - u) * c;
    let after: Vec<f32> = update.iter().zip(before).zip(&candidate).map(blend).collect();
    for (at, values) in [reset, update, candidate, after].iter().enumerate() {
        set(ctx, at, Float, &[batch, cell], values)?;
    }
    Ok(())
}

/// `GRUBlockCellGrad`: computes the gradients with respect to the input, the previous state, and the candidate state
/// and the gates before their activation functions.
pub(super) fn cell_gradient(ctx: &mut KernelContext<'_>) -> Result<()> {
    let all = Cell::of(ctx)?;
    let (batch, input, cell) = (all.batch, all.input, all.cell);
    let state = |at: usize, name: &str| operand(ctx, at, name, &[batch, cell]);
    let (reset, update, candidate, d_after) =
        (state(6, "r")?, state(7, "u")?, state(8, "c")?, state(9, "d_h")?);
    let (reset, update) = (reset.values::<f32>()?, update.values::<f32>()?);
    let (candidate, d_after) = (candidate.values::<f32>()?, d_after.values::<f32>()?);
    let before = all.before.values::<f32>()?;
    let count = batch * cell;
    let d_candidate: Vec<f32> =
        (0..count).map(|n| d_after[n] * (1.0 - update[n]) * (1.0 - candidate[n] * candidate[n])).collect();
    let (x_by_candidate, kept) = all.back(&d_candidate, &all.state, cell)?;
    let mut d_gates = vec![0f32; 2 * count];
    for n in 0..count {
        let (row, at) = (n / cell, n % cell);
        let d_reset = kept[n] * before[n] * reset[n] * (1.0 - reset[n]);
        let d_update = d_after[n] * (before[n] - candidate[n]) * update[n] * (1.0 - update[n]);
        d_gates[row * 2 * cell + at] = d_reset;
        d_gates[row * 2 * cell + cell + at] = d_update;
    }
    let (mut d_x, mut d_before) = all.back(&d_gates, &all.gates, 2 * cell)?;
    d_x.iter_mut().zip(&x_by_candidate).for_each(|(sum, value)| *sum += value);
    for n in 0..count {
        d_before[n] += kept[n] * reset[n] + d_after[n] * update[n];
    }
    set(ctx, 0, Float, &[batch, input], &d_x)?;
    set(ctx, 1, Float, &[batch, cell], &d_before)?;
    set(ctx, 2, Float, &[batch, cell], &d_candidate)?;
    set(ctx, 3, Float, &[batch, 2 * cell], &d_gates)
}
