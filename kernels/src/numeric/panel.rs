//! `f32` matrices packed for [`super::micro`]: cut into panels of columns, each at most as wide as a register block and
//! read sequentially.

use super::micro::{Registers, RightPanel};
use super::product::Threads;
use super::transpose_block;
use device::Result;
use graph::Buffer;
use rayon::prelude::*;
use smallvec::SmallVec;
use std::ops::Range;

/// A matrix packed in panels of columns.
#[derive(Debug)]
pub(crate) struct Panels {
    memory: Buffer,
    steps: usize,
    columns: usize,
}

impl Panels {
    /// Returns panels without memory, for [`Panels::fill`].
    pub(crate) fn new() -> Panels {
        Panels { memory: Buffer::default(), steps: 0, columns: 0 }
    }

    /// Packs a matrix of `steps` rows, reusing the memory of the previous matrix if it is large enough.
    ///
    /// # Errors
    /// `ResourceExhausted` if the memory cannot be allocated.
    pub(crate) fn fill(
        &mut self,
        steps: usize,
        columns: usize,
        threads: Threads,
        source: &(impl PanelSource + Sync),
    ) -> Result<()> {
        let registers = Registers::get();
        (self.steps, self.columns) = (steps, columns);
        let len = steps * registers.whole_vectors(columns);
        if len == 0 {
            return Ok(());
        }
        if self.memory.len() < len * size_of::<f32>() {
            self.memory = Buffer::unspecified(len * size_of::<f32>())?;
        }
        let mut rest = &mut bytemuck::cast_slice_mut(self.memory.as_mut_slice())[..len];
        let parts = registers.panels(columns).map(|columns| {
            let step = registers.whole_vectors(columns.len());
            let (panel, others) = std::mem::take(&mut rest).split_at_mut(steps * step);
            rest = others;
            UnfilledPanel { columns, step, panel }
        });
        let mut parts: SmallVec<[UnfilledPanel<'_>; 16]> = parts.collect();
        match threads {
            Threads::One => source.panels(&mut parts),
            Threads::All => parts.par_iter_mut().for_each(|part| source.panels(std::slice::from_mut(part))),
        }
        Ok(())
    }

    /// Returns the number of rows of the packed matrix.
    pub(crate) fn steps(&self) -> usize {
        self.steps
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Panel<'_>> {
        let registers = Registers::get();
        let data: &[f32] = bytemuck::cast_slice(self.memory.as_slice());
        registers.panels(self.columns).map(move |columns| {
            let (first, width) = (columns.start, columns.len());
            let step = registers.whole_vectors(width);
            Panel { first, width, step, data: &data[first * self.steps..][..self.steps * step] }
        })
    }
}

/// A packed panel: columns `first..first + width` of the matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panel<'a> {
    pub(crate) first: usize,
    pub(crate) width: usize,
    step: usize,
    data: &'a [f32],
}

impl<'a> Panel<'a> {
    /// Returns the part of the panel from row `step` on.
    pub(crate) fn from(&self, step: usize) -> RightPanel<'a> {
        RightPanel { data: &self.data[step * self.step..], step: self.step }
    }
}

/// The memory of a panel that is to be filled with `columns` of a matrix; the rows of the panel are `step` elements
/// apart.
#[derive(Debug)]
pub(crate) struct UnfilledPanel<'a> {
    columns: Range<usize>,
    step: usize,
    panel: &'a mut [f32],
}

/// A matrix that can be packed into panels.
pub(crate) trait PanelSource {
    /// Writes columns `first..first + width` of each row to `panel`, whose rows are `step` apart.
    fn panel(&self, first: usize, width: usize, step: usize, panel: &mut [f32]);

    /// Fills each of the panels with its columns of the matrix.
    fn panels(&self, panels: &mut [UnfilledPanel<'_>]) {
        for UnfilledPanel { columns, step, panel } in panels {
            self.panel(columns.start, columns.len(), *step, panel);
        }
    }
}

/// A matrix whose rows lie `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowSource<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
}

impl PanelSource for RowSource<'_> {
    fn panel(&self, first: usize, width: usize, step: usize, panel: &mut [f32]) {
        for (t, to) in panel.chunks_exact_mut(step).enumerate() {
            copy_row(to, &self.data[t * self.stride + first..][..width]);
        }
    }
}

/// A matrix that is in no cache yet: each row is read once, in memory order, for all panels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamedRows<'a>(pub(crate) RowSource<'a>);

impl PanelSource for StreamedRows<'_> {
    fn panel(&self, first: usize, width: usize, step: usize, panel: &mut [f32]) {
        self.0.panel(first, width, step, panel);
    }

    fn panels(&self, panels: &mut [UnfilledPanel<'_>]) {
        let RowSource { data, stride } = self.0;
        let steps = panels.first().map_or(0, |part| part.panel.len() / part.step);
        for t in 0..steps {
            for UnfilledPanel { columns, step, panel } in &mut *panels {
                copy_row(&mut panel[t * *step..][..*step], &data[t * stride..][columns.clone()]);
            }
        }
    }
}

/// Number of elements of a row that are copied at a time.
const PIECE: usize = 8;

/// Copies a row into a panel, and fills the rest of the panel's row with zeros.
#[inline]
fn copy_row(to: &mut [f32], from: &[f32]) {
    // Most rows consist of a few whole vectors; a call to `memcpy` would take longer than copying them here.
    if to.len() == from.len()
        && let ((to, []), (from, [])) = (to.as_chunks_mut::<PIECE>(), from.as_chunks::<PIECE>())
    {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        return;
    }
    let (to, rest) = to.split_at_mut(from.len());
    to.copy_from_slice(from);
    rest.fill(0.0);
}

/// A matrix whose columns lie `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ColumnSource<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
}

impl PanelSource for ColumnSource<'_> {
    fn panel(&self, first: usize, width: usize, step: usize, panel: &mut [f32]) {
        let count = panel.len() / step;
        let from = bytemuck::cast_slice(&self.data[first * self.stride..]);
        transpose_block::words(from, self.stride, bytemuck::cast_slice_mut(panel), step, [width, count]);
        panel.chunks_exact_mut(step).for_each(|row| row[width..].fill(0.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct PanicOnCopy;

    impl PanelSource for PanicOnCopy {
        fn panel(&self, _first: usize, _width: usize, _step: usize, _panel: &mut [f32]) {
            panic!("there is nothing to copy");
        }
    }

    #[test]
    fn a_matrix_without_elements_is_not_copied() -> Result<()> {
        for (steps, columns) in [(0, 40), (3, 0), (0, 0)] {
            for threads in [Threads::One, Threads::All] {
                let mut panels = Panels::new();
                panels.fill(steps, columns, threads, &PanicOnCopy)?;
                assert_eq!((panels.steps(), panels.columns()), (steps, columns));
            }
        }
        Ok(())
    }
}
