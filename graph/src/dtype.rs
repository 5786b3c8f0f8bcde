//! Element types with TensorFlow's names and numbers, and the Rust types that represent them.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use num_complex::Complex;
use std::fmt;

macro_rules! dtypes {
    ($($variant:ident = $number:literal, $name:literal, $long:literal, $size:expr;)*) => {
        /// The type of a tensor's elements. Discriminants are TensorFlow's `DataType` numbers.
        ///
        /// The type fills a machine word, because each tensor has a dtype and tensors are moved at every node. A type
        /// of one byte followed by padding would be copied by several narrow stores, and a processor is slow to load a
        /// word that was just written by several stores.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum DType { $($variant = $number,)* }

        impl DType {
            /// All element types.
            pub const ALL: &'static [DType] = &[$(DType::$variant),*];

            /// Returns the type's name in op definitions: `float`, `int32`, `bool`.
            pub fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// Returns the type's name in Python and numpy: `float32`, `int32`, `bool`.
            pub fn numpy_name(self) -> &'static str {
                match self { $(DType::$variant => $long,)* }
            }

            /// Returns the bytes per element; `None` for types whose elements are objects (string, resource,
            /// variant).
            pub const fn size(self) -> Option<usize> {
                let size: usize = match self { $(DType::$variant => $size,)* };
                if size == 0 { None } else { Some(size) }
            }
        }
    };
}

dtypes! {
    Float = 1, "float", "float32", 4;
    Double = 2, "double", "float64", 8;
    Int32 = 3, "int32", "int32", 4;
    UInt8 = 4, "uint8", "uint8", 1;
    Int16 = 5, "int16", "int16", 2;
    Int8 = 6, "int8", "int8", 1;
    String = 7, "string", "string", 0;
    Complex64 = 8, "complex64", "complex64", 8;
    Int64 = 9, "int64", "int64", 8;
    Bool = 10, "bool", "bool", 1;
    QInt8 = 11, "qint8", "qint8", 1;
    QUInt8 = 12, "quint8", "quint8", 1;
    QInt32 = 13, "qint32", "qint32", 4;
    BFloat16 = 14, "bfloat16", "bfloat16", 2;
    QInt16 = 15, "qint16", "qint16", 2;
    QUInt16 = 16, "quint16", "quint16", 2;
    UInt16 = 17, "uint16", "uint16", 2;
    Complex128 = 18, "complex128", "complex128", 16;
    Half = 19, "half", "float16", 2;
    Resource = 20, "resource", "resource", 0;
    Variant = 21, "variant", "variant", 0;
    UInt32 = 22, "uint32", "uint32", 4;
    UInt64 = 23, "uint64", "uint64", 8;
    Float8E5M2 = 24, "float8_e5m2", "float8_e5m2", 1;
    Float8E4M3FN = 25, "float8_e4m3fn", "float8_e4m3fn", 1;
    Float8E4M3FNUZ = 26, "float8_e4m3fnuz", "float8_e4m3fnuz", 1;
    Float8E4M3B11FNUZ = 27, "float8_e4m3b11fnuz", "float8_e4m3b11fnuz", 1;
    Float8E5M2FNUZ = 28, "float8_e5m2fnuz", "float8_e5m2fnuz", 1;
    Int4 = 29, "int4", "int4", 1;
    UInt4 = 30, "uint4", "uint4", 1;
    Int2 = 31, "int2", "int2", 1;
    UInt2 = 32, "uint2", "uint2", 1;
    Float4E2M1FN = 33, "float4_e2m1fn", "float4_e2m1fn", 1;
}

/// The difference between the number of a reference type and the number of its base type.
pub const REF_OFFSET: i32 = 100;

impl DType {
    /// Returns the type with this TensorFlow number; `None` for reference types (numbers over 100) and 0.
    pub fn from_number(number: i32) -> Option<DType> {
        DType::ALL.iter().copied().find(|d| *d as i32 == number)
    }

    /// Returns the type with this name, in either spelling (`float` or `float32`).
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.iter().copied().find(|d| d.name() == name || d.numpy_name() == name)
    }

    /// Returns the type's TensorFlow number.
    pub fn number(self) -> i32 {
        self as i32
    }

    /// Returns whether the elements are real floating-point numbers.
    pub fn is_floating(self) -> bool {
        matches!(self, DType::Float | DType::Double | DType::Half | DType::BFloat16)
    }

    /// Returns whether the elements are complex numbers.
    pub fn is_complex(self) -> bool {
        matches!(self, DType::Complex64 | DType::Complex128)
    }

    /// Returns whether the elements are integers, signed or unsigned; quantized types are not.
    pub fn is_integer(self) -> bool {
        self.is_signed_integer() || self.is_unsigned_integer()
    }

    /// Returns whether the elements are signed integers.
    pub fn is_signed_integer(self) -> bool {
        matches!(self, DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64)
    }

    /// Returns whether the elements are unsigned integers.
    pub fn is_unsigned_integer(self) -> bool {
        matches!(self, DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64)
    }

    /// Returns whether gradients can flow through values of this type.
    pub fn is_differentiable(self) -> bool {
        self.is_floating() || self.is_complex()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The type of a node's port: an element type, by value or by reference (a TF1 reference variable).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PortType {
    pub dtype: DType,
    pub is_ref: bool,
}

impl PortType {
    /// Returns the type of a port that passes values.
    pub const fn value(dtype: DType) -> PortType {
        PortType { dtype, is_ref: false }
    }

    /// Returns whether an edge of this type requires both of its nodes to be on one device.
    pub fn is_ref_or_resource(self) -> bool {
        self.is_ref || self.dtype == DType::Resource
    }
}

impl fmt::Display for PortType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_ref { write!(f, "Ref({})", self.dtype) } else { write!(f, "{}", self.dtype) }
    }
}

/// A boolean element: one byte, 0 or 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable, Default)]
#[repr(transparent)]
pub struct Bool8(u8);

impl Bool8 {
    pub const TRUE: Bool8 = Bool8(1);
    pub const FALSE: Bool8 = Bool8(0);

    /// Returns the element as a `bool`.
    pub fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool8 {
    fn from(b: bool) -> Bool8 {
        Bool8(b as u8)
    }
}

impl From<Bool8> for bool {
    fn from(b: Bool8) -> bool {
        b.get()
    }
}

impl fmt::Debug for Bool8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// A Rust type that represents the elements of one dtype as plain bytes.
pub trait Element: Pod + Send + Sync + PartialEq + fmt::Debug + 'static {
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ty => $d:ident),*) => { $(impl Element for $t { const DTYPE: DType = DType::$d; })* };
}

elements! {
    f32 => Float, f64 => Double, f16 => Half, bf16 => BFloat16,
    i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    u8 => UInt8, u16 => UInt16, u32 => UInt32, u64 => UInt64,
    Complex<f32> => Complex64, Complex<f64> => Complex128,
    Bool8 => Bool
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique_and_round_trip() {
        for &d in DType::ALL {
            assert_eq!(DType::from_number(d.number()), Some(d));
            assert_eq!(DType::from_name(d.name()), Some(d));
            assert_eq!(DType::from_name(d.numpy_name()), Some(d));
        }
        assert_eq!(DType::from_number(0), None);
        assert_eq!(DType::from_number(101), None);
    }
}
