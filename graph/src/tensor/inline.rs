//! The elements of tensors so small that memory of their own would cost more than they do: most scalars.

/// From one to [`Inline::CAPACITY`] bytes, aligned for any element that fits. A tensor without elements is none of these:
/// its elements may be larger, and even none of them have to be aligned.
#[derive(Clone, Copy)]
pub(super) struct Inline {
    len: Len,
    word: u64,
}

/// A number of bytes. Its unused values tell this kind of storage from the others, without a tag beside it. It fills a word,
/// as [`crate::DType`] does.
#[derive(Clone, Copy)]
#[repr(usize)]
#[rustfmt::skip]
enum Len { L1 = 1, L2, L3, L4, L5, L6, L7, L8 }

const LENS: [Len; Inline::CAPACITY] =
    [Len::L1, Len::L2, Len::L3, Len::L4, Len::L5, Len::L6, Len::L7, Len::L8];

impl Inline {
    const CAPACITY: usize = size_of::<u64>();

    /// So many bytes of zero, if they fit.
    #[inline]
    pub(super) fn zeroed(len: usize) -> Option<Inline> {
        LENS.get(len.checked_sub(1)?).map(|&len| Inline { len, word: 0 })
    }

    /// These bytes, if they fit.
    #[inline]
    pub(super) fn holding(bytes: &[u8]) -> Option<Inline> {
        let &len = LENS.get(bytes.len().checked_sub(1)?)?;
        // A word made in a register: what is written to memory in parts cannot be read as a whole soon after.
        let mut word = [0; Inline::CAPACITY];
        word[..bytes.len()].copy_from_slice(bytes);
        Some(Inline { len, word: u64::from_ne_bytes(word) })
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &bytemuck::bytes_of(&self.word)[..self.len as usize]
    }

    #[inline]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::bytes_of_mut(&mut self.word)[..self.len as usize]
    }
}
