//! Inline storage for the elements of very small tensors, mainly scalars, for which an allocation would cost more
//! than the elements.

/// Storage of 1 to [`Inline::CAPACITY`] bytes, aligned for any element type that fits. Inline storage is not used for
/// tensors without elements, whose element type may be larger and need a larger alignment.
#[derive(Clone, Copy)]
pub(super) struct Inline {
    len: Len,
    word: u64,
}

/// The length of inline storage in bytes. The compiler uses the invalid values of this type to distinguish inline
/// storage from other storage without a separate tag. The type fills a machine word for the same reason as
/// [`crate::DType`].
#[derive(Clone, Copy)]
#[repr(usize)]
#[rustfmt::skip]
enum Len { L1 = 1, L2, L3, L4, L5, L6, L7, L8 }

const LENS: [Len; Inline::CAPACITY] =
    [Len::L1, Len::L2, Len::L3, Len::L4, Len::L5, Len::L6, Len::L7, Len::L8];

impl Inline {
    const CAPACITY: usize = size_of::<u64>();

    /// Returns storage of `len` zero bytes, if they fit.
    #[inline]
    pub(super) fn zeroed(len: usize) -> Option<Inline> {
        LENS.get(len.checked_sub(1)?).map(|&len| Inline { len, word: 0 })
    }

    /// Returns storage that holds these bytes, if they fit.
    #[inline]
    pub(super) fn holding(bytes: &[u8]) -> Option<Inline> {
        let &len = LENS.get(bytes.len().checked_sub(1)?)?;
        // The word is assembled in a register, because a processor is slow to load a word that was just written by
        // several narrow stores.
        let mut word = [0; Inline::CAPACITY];
        word[..bytes.len()].copy_from_slice(bytes);
        Some(Inline { len, word: u64::from_ne_bytes(word) })
    }

    /// Returns the bytes.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &bytemuck::bytes_of(&self.word)[..self.len as usize]
    }

    /// Returns the bytes for writing.
    #[inline]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::bytes_of_mut(&mut self.word)[..self.len as usize]
    }
}
