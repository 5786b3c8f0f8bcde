//! Tensors in host memory: a dtype, a shape, and shared storage that is copied on the first write while it is shared.

mod buffer;
mod display;
mod inline;
mod iterator_state;
mod list;
mod map;
mod object;
mod optional;
mod region;

pub use buffer::{ALIGNMENT, Buffer, LARGE, available_memory, memory_limit, set_memory_limit, trim_memory};
pub use iterator_state::IteratorState;
pub use list::TensorList;
pub use map::TensorMap;
pub use object::{MAX_NESTING, MAX_TENSORS, ResourceHandle, Variant, VariantComponent, VariantObject};
pub use optional::Optional;
pub use region::{LargeMemorySource, Region, Use, set_large_memory};

use crate::dtype::{Bool8, DType, Element};
use crate::error::{Code, Error, Result};
use crate::shape::Shape;
use bytes::Bytes;
use inline::Inline;
use std::ops::Range;
use std::sync::Arc;

/// A tensor in host memory, with its elements in row-major order. Clones share the storage.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    storage: Storage,
}

/// The elements of a tensor.
#[derive(Clone)]
enum Storage {
    Inline(Inline),
    Plain(Arc<Buffer>),
    Strings(Arc<Vec<Bytes>>),
    Resources(Arc<Vec<ResourceHandle>>),
    Variants(Arc<Vec<Variant>>),
}

impl Tensor {
    /// Returns a tensor of zeros: empty strings for `String`, empty variants for `Variant`.
    ///
    /// # Errors
    /// `ResourceExhausted` if the memory is not sufficient; `Unimplemented` for dtypes without host storage.
    pub fn zeros(dtype: DType, shape: Shape) -> Result<Tensor> {
        let storage = match dtype {
            DType::String => Storage::Strings(Arc::new(objects(shape.num_elements(), Bytes::new())?)),
            DType::Variant => Storage::Variants(Arc::new(objects(shape.num_elements(), Variant::EMPTY)?)),
            _ => plain_storage(plain_bytes(dtype, &shape)?, Buffer::zeroed)?,
        };
        Ok(Tensor { dtype, shape, storage })
    }

    /// Returns a tensor of plain elements with arbitrary contents, for a kernel to overwrite.
    pub fn unspecified(dtype: DType, shape: Shape) -> Result<Tensor> {
        let storage = plain_storage(plain_bytes(dtype, &shape)?, Buffer::unspecified)?;
        Ok(Tensor { dtype, shape, storage })
    }

    /// Returns a scalar.
    #[inline]
    pub fn scalar<T: Element>(value: T) -> Tensor {
        let bytes = bytemuck::bytes_of(&value);
        let storage = Inline::holding(bytes).map(Storage::Inline).unwrap_or_else(|| {
            let mut buffer = Buffer::zeroed(bytes.len()).unwrap_or_default();
            buffer.as_mut_slice().copy_from_slice(bytes);
            Storage::Plain(Arc::new(buffer))
        });
        Tensor { dtype: T::DTYPE, shape: Shape::scalar(), storage }
    }

    /// Returns a vector of these elements.
    pub fn vector<T: Element>(values: &[T]) -> Result<Tensor> {
        Tensor::from_slice(values, Shape::new(&[values.len()])?)
    }

    /// Returns a tensor of these elements in row-major order.
    ///
    /// # Errors
    /// `InvalidArgument` if the number of elements does not match the shape.
    pub fn from_slice<T: Element>(values: &[T], shape: Shape) -> Result<Tensor> {
        Tensor::from_bytes(T::DTYPE, shape, bytemuck::cast_slice(values))
    }

    /// Like [`Tensor::from_slice`], from the elements' little-endian bytes.
    pub fn from_bytes(dtype: DType, shape: Shape, bytes: &[u8]) -> Result<Tensor> {
        let expected = plain_bytes(dtype, &shape)?;
        if bytes.len() != expected {
            crate::invalid!(
                "{} bytes do not make a {dtype} tensor of shape {shape}: it has {expected}",
                bytes.len()
            );
        }
        let storage = match Inline::holding(bytes) {
            Some(inline) => Storage::Inline(inline),
            None => {
                let mut buffer = Buffer::unspecified(expected)?;
                buffer.as_mut_slice().copy_from_slice(bytes);
                Storage::Plain(Arc::new(buffer))
            }
        };
        Ok(Tensor { dtype, shape, storage })
    }

    /// Returns a tensor over a filled buffer. If the buffer is read-only, a write to the tensor copies it.
    pub fn from_buffer(dtype: DType, shape: Shape, buffer: Buffer) -> Result<Tensor> {
        let expected = plain_bytes(dtype, &shape)?;
        if buffer.len() != expected {
            crate::invalid!("a buffer of {} bytes is no {dtype} tensor of shape {shape}", buffer.len());
        }
        Ok(Tensor { dtype, shape, storage: Storage::Plain(Arc::new(buffer)) })
    }

    /// Returns a tensor in which every element is `value`.
    pub fn full<T: Element>(value: T, shape: Shape) -> Result<Tensor> {
        let mut t = Tensor::unspecified(T::DTYPE, shape)?;
        t.values_mut::<T>()?.fill(value);
        Ok(t)
    }

    /// Returns a tensor of booleans; an error if their number does not match the shape.
    pub fn bools(values: &[bool], shape: Shape) -> Result<Tensor> {
        let values: Vec<Bool8> = values.iter().map(|&b| b.into()).collect();
        Tensor::from_slice(&values, shape)
    }

    /// Returns a tensor of strings; an error if their number does not match the shape.
    pub fn strings(values: Vec<Bytes>, shape: Shape) -> Result<Tensor> {
        if values.len() != shape.num_elements() {
            crate::invalid!("{} strings do not make a tensor of shape {shape}", values.len());
        }
        Ok(Tensor { dtype: DType::String, shape, storage: Storage::Strings(Arc::new(values)) })
    }

    /// Returns a scalar string.
    pub fn string(value: impl Into<Bytes>) -> Tensor {
        Tensor {
            dtype: DType::String,
            shape: Shape::scalar(),
            storage: Storage::Strings(Arc::new(vec![value.into()])),
        }
    }

    /// Returns a scalar resource handle.
    pub fn resource(handle: ResourceHandle) -> Tensor {
        Tensor {
            dtype: DType::Resource,
            shape: Shape::scalar(),
            storage: Storage::Resources(Arc::new(vec![handle])),
        }
    }

    /// Returns a tensor of resource handles; an error if their number does not match the shape.
    pub fn resources(handles: Vec<ResourceHandle>, shape: Shape) -> Result<Tensor> {
        if handles.len() != shape.num_elements() {
            crate::invalid!("{} handles do not make a tensor of shape {shape}", handles.len());
        }
        Ok(Tensor { dtype: DType::Resource, shape, storage: Storage::Resources(Arc::new(handles)) })
    }

    /// Returns a scalar variant that holds the object.
    pub fn variant<T: VariantObject>(object: T) -> Tensor {
        Tensor {
            dtype: DType::Variant,
            shape: Shape::scalar(),
            storage: Storage::Variants(Arc::new(vec![Variant::new(object)])),
        }
    }

    /// Returns a tensor of variants; an error if their number does not match the shape.
    pub fn variants(values: Vec<Variant>, shape: Shape) -> Result<Tensor> {
        if values.len() != shape.num_elements() {
            crate::invalid!("{} variants do not make a tensor of shape {shape}", values.len());
        }
        Ok(Tensor { dtype: DType::Variant, shape, storage: Storage::Variants(Arc::new(values)) })
    }

    /// Returns the type of the elements.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the number of elements.
    #[inline]
    pub fn num_elements(&self) -> usize {
        self.shape.num_elements()
    }

    /// Returns the size of the elements in bytes; for strings the total length of their contents.
    pub fn num_bytes(&self) -> usize {
        match &self.storage {
            Storage::Inline(i) => i.bytes().len(),
            Storage::Plain(b) => b.len(),
            Storage::Strings(s) => s.iter().map(Bytes::len).sum(),
            Storage::Resources(r) => r.len() * size_of::<ResourceHandle>(),
            Storage::Variants(v) => v.len() * size_of::<Variant>(),
        }
    }

    /// Returns the elements.
    ///
    /// # Errors
    /// `InvalidArgument` if the tensor's dtype is not that of `T`.
    #[inline]
    pub fn values<T: Element>(&self) -> Result<&[T]> {
        self.expect::<T>()?;
        Ok(bytemuck::cast_slice(self.bytes()?))
    }

    /// Returns the elements for writing; shared storage is copied first.
    pub fn values_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        self.expect::<T>()?;
        Ok(bytemuck::cast_slice_mut(self.bytes_mut()?))
    }

    /// Returns the only element of a tensor with one element; an error for other tensors.
    #[inline]
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.values::<T>()? {
            [value] => Ok(*value),
            _ => Err(Error::invalid(format!("expected a scalar, got a tensor of shape {}", self.shape))),
        }
    }

    /// Returns the elements of an `int16`, `int32` or `int64` tensor, the types of sizes, axes and indices.
    pub fn to_i64s(&self) -> Result<Vec<i64>> {
        match self.dtype {
            DType::Int32 => Ok(self.values::<i32>()?.iter().map(|&v| v.into()).collect()),
            DType::Int64 => Ok(self.values::<i64>()?.to_vec()),
            DType::Int16 => Ok(self.values::<i16>()?.iter().map(|&v| v.into()).collect()),
            other => Err(Error::invalid(format!("expected a tensor of int32 or int64, got {other}"))),
        }
    }

    /// Returns the elements' little-endian bytes; an error for dtypes without plain elements.
    #[inline]
    pub fn bytes(&self) -> Result<&[u8]> {
        match &self.storage {
            Storage::Inline(i) => Ok(i.bytes()),
            Storage::Plain(b) => Ok(b.as_slice()),
            _ => Err(Error::invalid(format!("a tensor of {} has no plain bytes", self.dtype))),
        }
    }

    /// Returns the elements' bytes for writing; shared storage is copied first.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        let shared = match &mut self.storage {
            Storage::Inline(i) => return Ok(i.bytes_mut()),
            Storage::Plain(shared) => shared,
            _ => crate::invalid!("a tensor of {} has no plain bytes", self.dtype),
        };
        if !is_unshared(shared) {
            let mut copy = Buffer::unspecified(shared.len())?;
            copy.as_mut_slice().copy_from_slice(shared.as_slice());
            *shared = Arc::new(copy);
        }
        match Arc::get_mut(shared) {
            Some(buffer) => Ok(buffer.as_mut_slice()),
            None => Err(Error::Invalid { code: Code::Internal, message: "storage is shared".into() }),
        }
    }

    /// Returns the storage of plain elements, which other readers may share without a copy. The elements of a tensor
    /// with inline storage are copied into a new buffer.
    pub fn buffer(&self) -> Option<Arc<Buffer>> {
        match &self.storage {
            Storage::Inline(i) => {
                let mut buffer = Buffer::unspecified(i.bytes().len()).ok()?;
                buffer.as_mut_slice().copy_from_slice(i.bytes());
                Some(Arc::new(buffer))
            }
            Storage::Plain(b) => Some(b.clone()),
            _ => None,
        }
    }

    /// Returns a copy of a scalar with inline storage, which needs no reference counting and no freeing; `None` for
    /// other tensors.
    #[inline]
    pub fn inline_scalar(&self) -> Option<Tensor> {
        match self.storage {
            Storage::Inline(inline) if self.shape.rank() == 0 => {
                Some(Tensor { dtype: self.dtype, shape: Shape::scalar(), storage: Storage::Inline(inline) })
            }
            _ => None,
        }
    }

    /// Returns a number that identifies the contents: clones and views have the same number until one of them is
    /// written, so results computed from the elements may be cached under the number. Returns `None` for inline storage
    /// and for elements that are objects.
    pub fn contents(&self) -> Option<u64> {
        match &self.storage {
            Storage::Plain(b) => Some(b.contents()),
            _ => None,
        }
    }

    /// Returns the elements of a string tensor; an error for other dtypes.
    pub fn as_strings(&self) -> Result<&[Bytes]> {
        match &self.storage {
            Storage::Strings(s) => Ok(s),
            _ => Err(Error::DType { expected: DType::String, actual: self.dtype }),
        }
    }

    /// Returns the elements of a resource tensor; an error for other dtypes.
    pub fn as_resources(&self) -> Result<&[ResourceHandle]> {
        match &self.storage {
            Storage::Resources(r) => Ok(r),
            _ => Err(Error::DType { expected: DType::Resource, actual: self.dtype }),
        }
    }

    /// Returns the elements of a variant tensor; an error for other dtypes.
    pub fn as_variants(&self) -> Result<&[Variant]> {
        match &self.storage {
            Storage::Variants(v) => Ok(v),
            _ => Err(Error::DType { expected: DType::Variant, actual: self.dtype }),
        }
    }

    /// Returns the elements of a variant tensor for writing; shared storage is copied first.
    pub fn variants_mut(&mut self) -> Result<&mut [Variant]> {
        match &mut self.storage {
            Storage::Variants(v) => Ok(Arc::make_mut(v).as_mut_slice()),
            _ => Err(Error::DType { expected: DType::Variant, actual: self.dtype }),
        }
    }

    /// Returns whether no other tensor or reader shares the storage, so that a write needs no copy.
    #[inline]
    pub fn is_unique(&self) -> bool {
        match &self.storage {
            Storage::Inline(_) => true,
            Storage::Plain(b) => is_unshared(b),
            Storage::Strings(s) => Arc::strong_count(s) == 1,
            Storage::Resources(r) => Arc::strong_count(r) == 1,
            Storage::Variants(v) => Arc::strong_count(v) == 1,
        }
    }

    /// Returns a tensor that shares the elements under another shape.
    ///
    /// # Errors
    /// `InvalidArgument` if the number of elements differs.
    pub fn reshaped(&self, shape: Shape) -> Result<Tensor> {
        if shape.num_elements() != self.num_elements() {
            crate::invalid!(
                "a tensor of shape {} has {} elements, the shape {shape} wants {}",
                self.shape,
                self.num_elements(),
                shape.num_elements()
            );
        }
        Ok(Tensor { dtype: self.dtype, shape, storage: self.storage.clone() })
    }

    /// Returns a range of the elements as a vector. The vector shares their memory if the range begins at a multiple of
    /// [`ALIGNMENT`] bytes, and is a copy otherwise.
    ///
    /// # Errors
    /// `InvalidArgument` for a dtype without plain elements, or a range beyond the elements.
    pub fn elements(&self, range: Range<usize>) -> Result<Tensor> {
        let shape = Shape::new(&[range.len()])?;
        if range.len() == self.num_elements() {
            return self.reshaped(shape);
        }
        let width = self.bytes()?.len().checked_div(self.num_elements()).unwrap_or(0);
        let bytes = range.start * width..range.end * width;
        match &self.storage {
            Storage::Plain(buffer) if bytes.start.is_multiple_of(ALIGNMENT) => {
                Tensor::from_buffer(self.dtype, shape, Buffer::view(buffer, bytes)?)
            }
            _ => match self.bytes()?.get(bytes) {
                Some(bytes) => Tensor::from_bytes(self.dtype, shape, bytes),
                None => crate::invalid!("elements {range:?} are not in a tensor of shape {}", self.shape),
            },
        }
    }

    /// Returns a tensor that shares the bits under another dtype of the same element size; an error if the sizes
    /// differ.
    pub fn with_dtype(&self, dtype: DType) -> Result<Tensor> {
        if dtype.size() != self.dtype.size() || dtype.size().is_none() {
            crate::invalid!("the bits of {} cannot be read as {dtype}", self.dtype);
        }
        Ok(Tensor { dtype, shape: self.shape.clone(), storage: self.storage.clone() })
    }

    /// Checks the dtype against `T`.
    fn expect<T: Element>(&self) -> Result<()> {
        if self.dtype == T::DTYPE {
            Ok(())
        } else {
            Err(Error::DType { expected: T::DTYPE, actual: self.dtype })
        }
    }
}

/// Two tensors are equal if their dtypes, shapes and elements are. Floats are compared by their bits, variants by
/// identity.
impl PartialEq for Tensor {
    fn eq(&self, other: &Tensor) -> bool {
        self.dtype == other.dtype
            && self.shape == other.shape
            && match (&self.storage, &other.storage) {
                (Storage::Strings(a), Storage::Strings(b)) => a == b,
                (Storage::Resources(a), Storage::Resources(b)) => a == b,
                (Storage::Variants(a), Storage::Variants(b)) => a == b,
                _ => matches!((self.bytes(), other.bytes()), (Ok(a), Ok(b)) if a == b),
            }
    }
}

impl<T: Element> From<T> for Tensor {
    fn from(value: T) -> Tensor {
        Tensor::scalar(value)
    }
}

impl From<bool> for Tensor {
    fn from(value: bool) -> Tensor {
        Tensor::scalar(Bool8::from(value))
    }
}

impl From<&str> for Tensor {
    fn from(value: &str) -> Tensor {
        Tensor::string(Bytes::copy_from_slice(value.as_bytes()))
    }
}

impl<T: Element, const N: usize> TryFrom<[T; N]> for Tensor {
    type Error = Error;
    fn try_from(values: [T; N]) -> Result<Tensor> {
        Tensor::vector(&values)
    }
}

impl<T: Element, const R: usize, const C: usize> TryFrom<[[T; C]; R]> for Tensor {
    type Error = Error;
    fn try_from(rows: [[T; C]; R]) -> Result<Tensor> {
        Tensor::from_slice(rows.as_flattened(), Shape::new(&[R, C])?)
    }
}

/// Allocates storage for `len` bytes of plain elements.
fn plain_storage(len: usize, buffer: impl FnOnce(usize) -> Result<Buffer>) -> Result<Storage> {
    match Inline::zeroed(len) {
        Some(inline) => Ok(Storage::Inline(inline)),
        None => Ok(Storage::Plain(Arc::new(buffer(len)?))),
    }
}

/// Returns whether the buffer has no other owner and is writable.
fn is_unshared(buffer: &Arc<Buffer>) -> bool {
    Arc::strong_count(buffer) == 1 && buffer.is_writable()
}

/// Returns the size in bytes of a tensor of plain elements.
fn plain_bytes(dtype: DType, shape: &Shape) -> Result<usize> {
    let size = dtype.size().ok_or_else(|| {
        Error::unimplemented(format!("a tensor of {dtype} has no plain elements to allocate"))
    })?;
    let bytes = shape.num_elements() as u128 * size as u128;
    usize::try_from(bytes)
        .ok()
        .filter(|&b| b <= isize::MAX as usize)
        .ok_or_else(|| buffer::out_of_memory(bytes))
}

/// Returns `count` clones of an object; an error if they do not fit the memory limit.
fn objects<T: Clone>(count: usize, object: T) -> Result<Vec<T>> {
    let bytes = count as u128 * size_of::<T>() as u128;
    if bytes > memory_limit() as u128 {
        return Err(buffer::out_of_memory(bytes));
    }
    let mut all = Vec::new();
    all.try_reserve_exact(count).map_err(|_| buffer::out_of_memory(bytes))?;
    all.resize(count, object);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_shared_storage_copies_it() -> Result<()> {
        let a = Tensor::try_from([1.0f32, 2.0, 3.0])?;
        let mut b = a.clone();
        b.values_mut::<f32>()?[0] = 5.0;
        assert_eq!(a.values::<f32>()?, [1.0, 2.0, 3.0]);
        assert_eq!(b.values::<f32>()?, [5.0, 2.0, 3.0]);
        let before = b.bytes()?.as_ptr();
        b.values_mut::<f32>()?[1] = 6.0;
        assert_eq!(b.bytes()?.as_ptr(), before);
        Ok(())
    }

    #[test]
    fn a_range_of_elements_shares_their_memory_if_it_is_aligned() -> Result<()> {
        let values: Vec<f32> = (0..100).map(|i| i as f32).collect();
        let mut whole = Tensor::vector(&values)?;
        let (aligned, other) = (whole.elements(16..99)?, whole.elements(3..7)?);
        assert_eq!((aligned.values::<f32>()?, other.values::<f32>()?), (&values[16..99], &values[3..7]));
        assert_eq!(aligned.bytes()?.as_ptr(), whole.bytes()?[64..].as_ptr());
        // A write to the whole tensor does not change the range.
        whole.values_mut::<f32>()?.fill(0.0);
        assert_eq!(aligned.values::<f32>()?, &values[16..99]);
        let inner = aligned.elements(16..20)?;
        assert_eq!(inner.values::<f32>()?, &values[32..36]);
        assert!(whole.elements(90..101).is_err() && whole.elements(96..101).is_err());
        Ok(())
    }

    #[test]
    fn small_tensors_have_inline_storage() -> Result<()> {
        assert_eq!(size_of::<Storage>(), 2 * size_of::<usize>());
        for len in 0..=20u8 {
            let values: Vec<u8> = (1..=len).collect();
            let mut t = Tensor::vector(&values)?;
            let shared = t.clone();
            assert_eq!(t.values::<u8>()?, values);
            assert_eq!(t.num_bytes(), values.len());
            assert_eq!(t.buffer().as_deref().map(Buffer::as_slice), Some(&values[..]));
            assert_eq!(t, shared);
            if let Some(first) = t.values_mut::<u8>()?.first_mut() {
                *first = 0;
                assert_ne!(t, shared);
            }
            assert_eq!(shared.values::<u8>()?, values);
            assert!(Tensor::zeros(DType::UInt8, t.shape().clone())?.bytes()?.iter().all(|b| *b == 0));
        }
        Ok(())
    }

    #[test]
    fn read_only_buffers_are_copied_before_a_write() -> Result<()> {
        struct ReadOnlyRegion([u8; 4]);
        impl Region for ReadOnlyRegion {
            fn bytes(&self) -> &[u8] {
                &self.0
            }

            fn bytes_mut(&mut self) -> Option<&mut [u8]> {
                None
            }

            fn is_writable(&self) -> bool {
                false
            }
        }
        let buffer = Buffer::borrowed(Box::new(ReadOnlyRegion([1, 2, 3, 4])));
        let mut t = Tensor::from_buffer(DType::UInt8, Shape::new(&[4])?, buffer)?;
        assert!(!t.is_unique());
        t.values_mut::<u8>()?[0] = 9;
        assert_eq!(t.values::<u8>()?, [9, 2, 3, 4]);
        assert!(t.is_unique());
        Ok(())
    }

    #[test]
    fn wrong_type_or_size_is_an_error() -> Result<()> {
        let a = Tensor::try_from([1.0f32, 2.0])?;
        assert!(a.values::<f64>().is_err());
        assert!(a.reshaped(Shape::new(&[3])?).is_err());
        assert!(Tensor::from_bytes(DType::Float, Shape::new(&[2])?, &[0; 7]).is_err());
        assert!(Tensor::zeros(DType::Float, Shape::new(&[1 << 45])?).is_err());
        assert!(Tensor::zeros(DType::String, Shape::new(&[1 << 50])?).is_err());
        Ok(())
    }
}
