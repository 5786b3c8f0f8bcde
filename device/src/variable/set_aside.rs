//! What a variable held at a moment, to be read out while it changes on.

use super::Variable;
use super::kept::{Blocks, Kept};
use crate::error::Result;
use graph::{DType, Shape, Tensor};
use parking_lot::Mutex;
use std::sync::Arc;

/// Of less, a copy is made when it changes: blocks would cost more.
const LEAST_BYTES: usize = 1 << 20;

/// Bytes that are read out at once. Writers of the variable wait for so much to be copied.
const PIECE_BYTES: usize = 256 << 10;

/// A value that was set aside. It stays in the variable and is read from there piece by piece; blocks that change before
/// their turn are kept here as they were, so that an update of a few rows copies those, and not all.
#[derive(Debug)]
pub struct SetAside {
    variable: Arc<Variable>,
    shape: Shape,
    blocks: Blocks,
    rest: Mutex<Rest>,
}

/// What has not been read out. Locked after the variable, of which it is a part.
#[derive(Debug)]
struct Rest {
    /// The value itself, once the variable may get another.
    own: Option<Tensor>,
    /// The byte that is read next.
    next: usize,
    /// Blocks from there on that have changed since, as they were.
    kept: Kept,
}

impl SetAside {
    pub(super) fn new(variable: Arc<Variable>, value: &Tensor) -> SetAside {
        let (total, shape) = (value.num_bytes(), value.shape().clone());
        let is_in_place = value.dtype().size().is_some() && total >= LEAST_BYTES;
        let own = if is_in_place { None } else { Some(value.clone()) };
        let row = total.checked_div(shape.first().copied().unwrap_or(1)).unwrap_or(total);
        let blocks = Blocks::of(total, row);
        let rest = Mutex::new(Rest { own, next: 0, kept: Kept::new(blocks) });
        SetAside { variable, shape, blocks, rest }
    }

    pub fn dtype(&self) -> DType {
        self.variable.dtype()
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Whether the value is still in the variable, whose writers must keep what they change.
    pub(super) fn is_in_variable(&self) -> bool {
        self.rest.lock().own.is_none()
    }

    /// The value as a tensor, if that is there for nothing.
    pub fn whole(&self) -> Option<Tensor> {
        let rest = self.rest.lock();
        rest.own.as_ref().filter(|_| rest.next == 0 && rest.kept.is_empty()).cloned()
    }

    /// Puts the bytes of plain elements that follow those of the last time at the start of `out`, and says how many
    /// these are: none once all have been read.
    pub fn read(&self, out: &mut [u8]) -> graph::Result<usize> {
        // Who writes the variable need not wait for what is read from our own.
        let held = self.is_in_variable().then(|| self.variable.held.lock());
        let rest = &mut *self.rest.lock();
        let value = rest.own.as_ref().or(held.as_ref().and_then(|held| held.value.as_ref()));
        let Some(value) = value else { return Ok(0) };
        let count = out.len().min(PIECE_BYTES).min(self.blocks.total - rest.next);
        let range = rest.next..rest.next + count;
        let out = &mut out[..count];
        out.copy_from_slice(&value.bytes()?[range.clone()]);
        rest.kept.restore(&range, out);
        rest.kept.forget(&range);
        rest.next = range.end;
        Ok(count)
    }

    /// The variable is about to get another value.
    pub(super) fn keep_all(&self, value: &Tensor) {
        self.rest.lock().own.get_or_insert_with(|| value.clone());
    }

    /// Slices of the variable, of so many bytes each, are about to change.
    pub(super) fn keep(
        &self,
        value: &Tensor,
        slices: impl Iterator<Item = usize>,
        size: usize,
    ) -> Result<()> {
        let bytes = value.bytes()?;
        let rest = &mut *self.rest.lock();
        for slice in slices {
            let rest_of_slice = (slice * size).max(rest.next)..(slice + 1) * size;
            if !rest_of_slice.is_empty() {
                self.blocks.that_have(&rest_of_slice).for_each(|block| rest.kept.keep(bytes, block));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::PartialShape;

    const ROWS: usize = 1 << 14;
    const WIDTH: usize = 24;

    /// A table whose elements are their own places, large enough to stay in place.
    fn table() -> Result<(Arc<Variable>, Vec<f32>)> {
        let elements: Vec<f32> = (0..ROWS * WIDTH).map(|i| i as f32).collect();
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        let value = Tensor::from_bytes(DType::Float, Shape::new(&[ROWS, WIDTH])?, &bytes)?;
        let variable = Arc::new(Variable::new("table", DType::Float, PartialShape::from(value.shape())));
        *variable.lock() = Some(value);
        Ok((variable, elements))
    }

    /// Adds 1 to these rows, as a kernel does that knows them.
    fn change(variable: &Variable, rows: &[usize]) -> Result<()> {
        let mut locked = variable.lock();
        if let Some(value) = locked.slices_mut(rows.iter().copied(), WIDTH)? {
            let values = value.values_mut::<f32>()?;
            for row in rows {
                values[row * WIDTH..(row + 1) * WIDTH].iter_mut().for_each(|v| *v += 1.0);
            }
        }
        Ok(())
    }

    /// For bytes that end within a row.
    fn room() -> Vec<u8> {
        vec![0; 100_001]
    }

    /// What there is after these bytes.
    fn read_rest(aside: &SetAside, mut bytes: Vec<u8>) -> Result<Vec<f32>> {
        let mut piece = room();
        loop {
            let count = aside.read(&mut piece)?;
            if count == 0 {
                break;
            }
            bytes.extend_from_slice(&piece[..count]);
        }
        let (elements, rest) = bytes.as_chunks::<4>();
        assert!(rest.is_empty());
        Ok(elements.iter().map(|&element| f32::from_le_bytes(element)).collect())
    }

    fn address(variable: &Variable) -> Result<*const u8> {
        Ok(variable.lock().as_ref().ok_or_else(|| variable.uninitialized())?.bytes()?.as_ptr())
    }

    #[test]
    fn rows_that_change_are_kept_as_they_were_and_the_table_stays_where_it_is() -> Result<()> {
        let (variable, before) = table()?;
        let place = address(&variable)?;
        let aside = variable.set_aside_in_place()?;
        change(&variable, &[0, 7, 7, ROWS - 1])?;
        let mut first = room();
        assert_eq!(aside.read(&mut first)?, first.len());
        // One that was read, one that was not, and one again.
        change(&variable, &[1, ROWS / 2, 7])?;
        assert_eq!(read_rest(&aside, first)?, before);
        assert_eq!(address(&variable)?, place);
        let now = variable.value()?;
        let at = |row: usize| now.values::<f32>().map(|values| values[row * WIDTH] - before[row * WIDTH]);
        assert_eq!([at(0)?, at(1)?, at(2)?, at(7)?, at(ROWS - 1)?], [1.0, 1.0, 0.0, 3.0, 1.0]);
        // Nothing is kept any more of what has been read.
        assert!(aside.rest.lock().kept.is_empty());
        Ok(())
    }

    #[test]
    fn whatever_changes_between_reads_what_is_read_is_of_the_moment() -> Result<()> {
        let (variable, before) = table()?;
        let aside = variable.set_aside_in_place()?;
        let (mut bytes, mut random) = (Vec::new(), 1u64);
        // Less than rows, blocks and segments, and more than each.
        for size in [40, 100, 1000, 70_000, 300_000].into_iter().cycle() {
            let rows: Vec<usize> = (0..200)
                .map(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 33) as usize % ROWS
                })
                .collect();
            change(&variable, &rows)?;
            let mut piece = vec![0; size];
            let count = aside.read(&mut piece)?;
            if count == 0 {
                break;
            }
            bytes.extend_from_slice(&piece[..count]);
        }
        assert!(read_rest(&aside, bytes)? == before);
        assert!(aside.rest.lock().kept.is_empty());
        Ok(())
    }

    #[test]
    fn a_table_that_gets_another_value_leaves_the_old_one() -> Result<()> {
        let (variable, before) = table()?;
        let aside = variable.set_aside_in_place()?;
        change(&variable, &[3])?;
        let mut first = room();
        assert_eq!(aside.read(&mut first)?, first.len());
        variable.update(|value| {
            value.values_mut::<f32>()?.fill(0.0);
            Ok(())
        })?;
        change(&variable, &[ROWS - 1])?;
        assert_eq!(read_rest(&aside, first)?, before);

        let (variable, before) = table()?;
        let aside = variable.set_aside_in_place()?;
        drop(variable.lock().take());
        assert_eq!(aside.whole().as_ref().map(Tensor::values::<f32>).transpose()?, Some(&before[..]));
        assert_eq!(read_rest(&aside, Vec::new())?, before);
        Ok(())
    }

    #[test]
    fn what_is_set_aside_twice_is_of_both_moments() -> Result<()> {
        let (variable, before) = table()?;
        let first = variable.set_aside_in_place()?;
        change(&variable, &[5])?;
        let second = variable.set_aside_in_place()?;
        change(&variable, &[5, 6])?;
        assert_eq!(read_rest(&first, Vec::new())?, before);
        let between = read_rest(&second, Vec::new())?;
        assert_eq!(between[5 * WIDTH], before[5 * WIDTH] + 1.0);
        assert_eq!(between[6 * WIDTH..], before[6 * WIDTH..]);
        drop((first, second));
        change(&variable, &[8])?;
        assert!(variable.held.lock().aside.is_empty());
        Ok(())
    }

    #[test]
    fn a_row_may_be_longer_than_a_block() -> Result<()> {
        let (variable, before) = table()?;
        variable.update(|value| {
            *value = value.clone().reshaped(Shape::new(&[3, ROWS * WIDTH / 3])?)?;
            Ok(())
        })?;
        let aside = variable.set_aside_in_place()?;
        let mut locked = variable.lock();
        if let Some(value) = locked.slices_mut([1].into_iter(), ROWS * WIDTH / 3)? {
            value.values_mut::<f32>()?[ROWS * WIDTH / 3..ROWS * WIDTH / 3 * 2].fill(-1.0);
        }
        drop(locked);
        assert_eq!(read_rest(&aside, Vec::new())?, before);
        Ok(())
    }

    #[test]
    fn what_is_small_or_has_no_plain_elements_is_shared() -> Result<()> {
        for value in [Tensor::from(2f32), Tensor::from("text")] {
            let variable = Arc::new(Variable::new("v", value.dtype(), PartialShape::scalar()));
            assert!(
                variable.set_aside_in_place().is_err_and(|e| e.code() == graph::Code::FailedPrecondition)
            );
            *variable.lock() = Some(value.clone());
            let aside = variable.set_aside_in_place()?;
            *variable.lock() = None;
            assert_eq!(aside.whole(), Some(value));
        }
        Ok(())
    }
}
