//! Snapshots of variables in host memory that are read piece by piece while the variable changes.

use super::Variable;
use super::saved_blocks::{Blocks, SavedBlocks};
use crate::error::Result;
use graph::{DType, Shape, Tensor};
use parking_lot::Mutex;
use std::sync::Arc;

/// The minimum size in bytes of a value of which a snapshot saves single blocks. A smaller value is copied as a whole
/// when it changes, because saving blocks would cost more.
const MIN_IN_PLACE_BYTES: usize = 1 << 20;

/// The maximum number of bytes that are read at once. Writers of the variable wait while the bytes are copied.
const PIECE_BYTES: usize = 256 << 10;

/// The value of a variable as of one moment. It stays in the variable and is read from there piece by piece. Blocks
/// that change before they are read are first saved here, so that an update of a few rows copies those rows and not the
/// whole value.
#[derive(Debug)]
pub struct InPlaceSnapshot {
    variable: Arc<Variable>,
    shape: Shape,
    blocks: Blocks,
    unread: Mutex<Unread>,
}

/// The part of the value that has not been read. Its lock is taken after the variable's lock.
#[derive(Debug)]
struct Unread {
    /// The whole value, once the snapshot owns it instead of reading it from the variable.
    detached: Option<Tensor>,
    /// The offset of the next byte to read.
    next: usize,
    /// The old contents of the blocks from `next` on that have changed since the snapshot was taken.
    saved: SavedBlocks,
}

impl InPlaceSnapshot {
    pub(super) fn new(variable: Arc<Variable>, value: &Tensor) -> InPlaceSnapshot {
        let (total, shape) = (value.num_bytes(), value.shape().clone());
        let is_in_place = value.dtype().size().is_some() && total >= MIN_IN_PLACE_BYTES;
        let detached = if is_in_place { None } else { Some(value.clone()) };
        let row = total.checked_div(shape.first().copied().unwrap_or(1)).unwrap_or(total);
        let blocks = Blocks::of(total, row);
        let unread = Mutex::new(Unread { detached, next: 0, saved: SavedBlocks::new(blocks) });
        InPlaceSnapshot { variable, shape, blocks, unread }
    }

    /// Returns the dtype of the snapshot's value.
    pub fn dtype(&self) -> DType {
        self.variable.dtype()
    }

    /// Returns the shape of the snapshot's value.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns whether the snapshot is still read from the variable, so that writers must save blocks before they
    /// change them.
    pub(super) fn is_in_variable(&self) -> bool {
        self.unread.lock().detached.is_none()
    }

    /// Returns the value as a tensor if no copy is needed; else `None`.
    pub fn whole(&self) -> Option<Tensor> {
        let unread = self.unread.lock();
        unread.detached.as_ref().filter(|_| unread.next == 0 && unread.saved.is_empty()).cloned()
    }

    /// Reads the next bytes of the value to the start of `out` and returns their number; 0 at the end. The elements
    /// must be of fixed size.
    pub fn read(&self, out: &mut [u8]) -> graph::Result<usize> {
        // The variable is locked only if the snapshot is read from it, so that its writers do not wait otherwise.
        let host_value = self.is_in_variable().then(|| self.variable.host_value.lock());
        let unread = &mut *self.unread.lock();
        let value =
            unread.detached.as_ref().or(host_value.as_ref().and_then(|host_value| host_value.value.as_ref()));
        let Some(value) = value else { return Ok(0) };
        let count = out.len().min(PIECE_BYTES).min(self.blocks.total - unread.next);
        let range = unread.next..unread.next + count;
        let out = &mut out[..count];
        out.copy_from_slice(&value.bytes()?[range.clone()]);
        unread.saved.restore(&range, out);
        unread.saved.drop_range(&range);
        unread.next = range.end;
        Ok(count)
    }

    /// Makes the snapshot own `value`, because the variable is about to get another value.
    pub(super) fn detach(&self, value: &Tensor) {
        self.unread.lock().detached.get_or_insert_with(|| value.clone());
    }

    /// Saves the blocks that contain the slices with the indices `slices`, of `size` bytes each, because the slices are
    /// about to change.
    pub(super) fn save_slices(
        &self,
        value: &Tensor,
        slices: impl Iterator<Item = usize>,
        size: usize,
    ) -> Result<()> {
        let bytes = value.bytes()?;
        let unread = &mut *self.unread.lock();
        for slice in slices {
            let unread_of_slice = (slice * size).max(unread.next)..(slice + 1) * size;
            if !unread_of_slice.is_empty() {
                self.blocks.containing(&unread_of_slice).for_each(|block| unread.saved.save(bytes, block));
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

    /// Returns a variable whose elements equal their index, large enough to be snapshot in place.
    fn table() -> Result<(Arc<Variable>, Vec<f32>)> {
        let elements: Vec<f32> = (0..ROWS * WIDTH).map(|i| i as f32).collect();
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        let value = Tensor::from_bytes(DType::Float, Shape::new(&[ROWS, WIDTH])?, &bytes)?;
        let variable = Arc::new(Variable::new("table", DType::Float, PartialShape::from(value.shape())));
        *variable.lock() = Some(value);
        Ok((variable, elements))
    }

    /// Adds 1 to the rows with the indices `rows`, like a kernel that changes known slices.
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

    /// Returns a buffer whose size is not a multiple of a row's.
    fn odd_sized_buffer() -> Vec<u8> {
        vec![0; 100_001]
    }

    /// Reads the snapshot to its end and returns all its elements; `bytes` has the part that was read before.
    fn read_rest(snapshot: &InPlaceSnapshot, mut bytes: Vec<u8>) -> Result<Vec<f32>> {
        let mut piece = odd_sized_buffer();
        loop {
            let count = snapshot.read(&mut piece)?;
            if count == 0 {
                break;
            }
            bytes.extend_from_slice(&piece[..count]);
        }
        let (elements, remainder) = bytes.as_chunks::<4>();
        assert!(remainder.is_empty());
        Ok(elements.iter().map(|&element| f32::from_le_bytes(element)).collect())
    }

    fn address(variable: &Variable) -> Result<*const u8> {
        Ok(variable.lock().as_ref().ok_or_else(|| variable.uninitialized())?.bytes()?.as_ptr())
    }

    #[test]
    fn changed_rows_are_saved_and_the_table_is_not_copied() -> Result<()> {
        let (variable, before) = table()?;
        let address_before = address(&variable)?;
        let snapshot = variable.snapshot_in_place()?;
        change(&variable, &[0, 7, 7, ROWS - 1])?;
        let mut first = odd_sized_buffer();
        assert_eq!(snapshot.read(&mut first)?, first.len());
        // Row 1 has been read, row `ROWS / 2` has not, and row 7 has already changed.
        change(&variable, &[1, ROWS / 2, 7])?;
        assert_eq!(read_rest(&snapshot, first)?, before);
        assert_eq!(address(&variable)?, address_before);
        let now = variable.value()?;
        let at = |row: usize| now.values::<f32>().map(|values| values[row * WIDTH] - before[row * WIDTH]);
        assert_eq!([at(0)?, at(1)?, at(2)?, at(7)?, at(ROWS - 1)?], [1.0, 1.0, 0.0, 3.0, 1.0]);
        // No saved blocks remain for the bytes that have been read.
        assert!(snapshot.unread.lock().saved.is_empty());
        Ok(())
    }

    #[test]
    fn changes_between_reads_do_not_change_the_snapshot() -> Result<()> {
        let (variable, before) = table()?;
        let snapshot = variable.snapshot_in_place()?;
        let (mut bytes, mut random) = (Vec::new(), 1u64);
        // Sizes of reads in bytes, below and above the sizes of rows, blocks and segments.
        for size in [40, 100, 1000, 70_000, 300_000].into_iter().cycle() {
            let rows: Vec<usize> = (0..200)
                .map(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 33) as usize % ROWS
                })
                .collect();
            change(&variable, &rows)?;
            let mut piece = vec![0; size];
            let count = snapshot.read(&mut piece)?;
            if count == 0 {
                break;
            }
            bytes.extend_from_slice(&piece[..count]);
        }
        assert!(read_rest(&snapshot, bytes)? == before);
        assert!(snapshot.unread.lock().saved.is_empty());
        Ok(())
    }

    #[test]
    fn an_assignment_leaves_the_old_value_to_the_snapshot() -> Result<()> {
        let (variable, before) = table()?;
        let snapshot = variable.snapshot_in_place()?;
        change(&variable, &[3])?;
        let mut first = odd_sized_buffer();
        assert_eq!(snapshot.read(&mut first)?, first.len());
        variable.update(|value| {
            value.values_mut::<f32>()?.fill(0.0);
            Ok(())
        })?;
        change(&variable, &[ROWS - 1])?;
        assert_eq!(read_rest(&snapshot, first)?, before);

        let (variable, before) = table()?;
        let snapshot = variable.snapshot_in_place()?;
        drop(variable.lock().take());
        assert_eq!(snapshot.whole().as_ref().map(Tensor::values::<f32>).transpose()?, Some(&before[..]));
        assert_eq!(read_rest(&snapshot, Vec::new())?, before);
        Ok(())
    }

    #[test]
    fn two_snapshots_have_the_values_of_their_own_moments() -> Result<()> {
        let (variable, before) = table()?;
        let first = variable.snapshot_in_place()?;
        change(&variable, &[5])?;
        let second = variable.snapshot_in_place()?;
        change(&variable, &[5, 6])?;
        assert_eq!(read_rest(&first, Vec::new())?, before);
        let between = read_rest(&second, Vec::new())?;
        assert_eq!(between[5 * WIDTH], before[5 * WIDTH] + 1.0);
        assert_eq!(between[6 * WIDTH..], before[6 * WIDTH..]);
        drop((first, second));
        change(&variable, &[8])?;
        assert!(variable.host_value.lock().snapshots.is_empty());
        Ok(())
    }

    #[test]
    fn a_row_may_be_longer_than_a_block() -> Result<()> {
        let (variable, before) = table()?;
        variable.update(|value| {
            *value = value.clone().reshaped(Shape::new(&[3, ROWS * WIDTH / 3])?)?;
            Ok(())
        })?;
        let snapshot = variable.snapshot_in_place()?;
        let mut locked = variable.lock();
        if let Some(value) = locked.slices_mut([1].into_iter(), ROWS * WIDTH / 3)? {
            value.values_mut::<f32>()?[ROWS * WIDTH / 3..ROWS * WIDTH / 3 * 2].fill(-1.0);
        }
        drop(locked);
        assert_eq!(read_rest(&snapshot, Vec::new())?, before);
        Ok(())
    }

    #[test]
    fn snapshots_share_small_and_string_values() -> Result<()> {
        for value in [Tensor::from(2f32), Tensor::from("text")] {
            let variable = Arc::new(Variable::new("v", value.dtype(), PartialShape::scalar()));
            assert!(variable.snapshot_in_place().is_err_and(|e| e.code() == graph::Code::FailedPrecondition));
            *variable.lock() = Some(value.clone());
            let snapshot = variable.snapshot_in_place()?;
            *variable.lock() = None;
            assert_eq!(snapshot.whole(), Some(value));
        }
        Ok(())
    }
}
