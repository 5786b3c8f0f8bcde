//! Tests that tensors are encoded and decoded unchanged, in all supported forms, and that malformed or
//! oversized messages are rejected.

use anabranch_proto::convert::{
    Budget, named_tensor_from_proto, named_tensor_to_proto, tensor_from_proto, tensor_from_proto_within,
    tensor_to_proto,
};
use anabranch_proto::pb::{
    DataType, NamedTensorProto, ResourceHandleProto, TensorProto, TensorShapeProto, VariantTensorDataProto,
    tensor_shape_proto::Dim,
};
use bytes::Bytes;
use graph::{
    Bool8, Code, DType, Optional, PartialShape, ResourceHandle, Result, Shape, Tensor, TensorList, Variant,
};
use prost::Message;

/// The SplitMix64 generator, which gives the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn text(&mut self) -> Bytes {
        let len = if self.below(8) == 0 { 300 } else { self.below(12) };
        (0..len).map(|_| self.next() as u8).collect()
    }

    fn tensor(&mut self, dtype: DType) -> Result<Tensor> {
        let rank = self.below(4);
        let dims: Vec<usize> = (0..rank).map(|_| self.below(7)).collect();
        let shape = Shape::new(&dims)?;
        let count = shape.num_elements();
        match dtype {
            DType::String => Tensor::strings((0..count).map(|_| self.text()).collect(), shape),
            DType::Resource => Tensor::resources((0..count).map(|i| self.handle(i)).collect(), shape),
            DType::Bool => Tensor::bools(&(0..count).map(|_| self.below(2) == 1).collect::<Vec<_>>(), shape),
            _ => {
                let mut tensor = Tensor::zeros(dtype, shape)?;
                tensor.bytes_mut()?.iter_mut().for_each(|b| *b = self.next() as u8);
                Ok(tensor)
            }
        }
    }

    fn handle(&mut self, i: usize) -> ResourceHandle {
        ResourceHandle {
            device: "/job:ps/replica:0/task:0/device:CPU:0".into(),
            container: "".into(),
            name: format!("w{i}").into(),
            hash_code: self.next(),
            type_name: "Var".into(),
            dtypes_and_shapes: vec![(DType::Float, PartialShape::from([None, Some(3)]))],
        }
    }
}

fn shape(sizes: &[i64]) -> Option<TensorShapeProto> {
    let dim = sizes.iter().map(|&size| Dim { size, name: String::new() }).collect();
    Some(TensorShapeProto { dim, unknown_rank: false })
}

fn of(dtype: DataType, sizes: &[i64]) -> TensorProto {
    TensorProto { dtype: dtype.into(), tensor_shape: shape(sizes), ..Default::default() }
}

#[test]
fn random_tensors_of_every_dtype_round_trip() -> Result<()> {
    let mut random = Random(1);
    let mut seen = 0;
    for round in 0..40 {
        for &dtype in DType::ALL.iter().filter(|&&d| d != DType::Variant) {
            let tensor = random.tensor(dtype)?;
            let wire = Bytes::from(tensor_to_proto(&tensor).encode_to_vec());
            let back = tensor_from_proto(
                TensorProto::decode(wire).map_err(|e| graph::Error::invalid(e.to_string()))?,
            )?;
            assert_eq!(back, tensor, "{dtype}, round {round}");
            seen += tensor.num_elements();
        }
    }
    assert!(seen > 1000, "{seen}");
    Ok(())
}

#[test]
fn large_contents_share_the_tensors_buffer() -> Result<()> {
    let tensor = Tensor::full(1.5f32, Shape::new(&[1000])?)?;
    let proto = tensor_to_proto(&tensor);
    assert_eq!(proto.tensor_content.as_ptr(), tensor.bytes()?.as_ptr());
    assert!(!tensor.is_unique());
    drop(proto);
    assert!(tensor.is_unique());
    // A small tensor can be written in place at once, because its contents were copied.
    let tensor = Tensor::scalar(1i32);
    let proto = tensor_to_proto(&tensor);
    assert!(tensor.is_unique());
    assert_eq!(&proto.tensor_content[..], [1, 0, 0, 0]);
    Ok(())
}

#[test]
fn typed_lists_are_read_and_their_last_element_repeats() -> Result<()> {
    use half::{bf16, f16};
    let two = |dtype| of(dtype, &[2]);
    let cases = [
        (TensorProto { float_val: vec![1.5], ..of(DataType::DtFloat, &[3]) }, Tensor::try_from([1.5f32; 3])?),
        (
            TensorProto { float_val: vec![1.0, 2.0, 3.0], ..two(DataType::DtFloat) },
            Tensor::try_from([1.0f32, 2.0])?,
        ),
        (two(DataType::DtFloat), Tensor::try_from([0.0f32; 2])?),
        (
            TensorProto { double_val: vec![0.25, 2.0], ..two(DataType::DtDouble) },
            Tensor::try_from([0.25f64, 2.0])?,
        ),
        (TensorProto { int_val: vec![-1, 7], ..two(DataType::DtInt32) }, Tensor::try_from([-1i32, 7])?),
        (TensorProto { int_val: vec![-1, 7], ..two(DataType::DtInt16) }, Tensor::try_from([-1i16, 7])?),
        (TensorProto { int_val: vec![-1, 7], ..two(DataType::DtInt8) }, Tensor::try_from([-1i8, 7])?),
        (TensorProto { int_val: vec![255, 7], ..two(DataType::DtUint8) }, Tensor::try_from([255u8, 7])?),
        (
            TensorProto { int_val: vec![65535, 7], ..two(DataType::DtUint16) },
            Tensor::try_from([65535u16, 7])?,
        ),
        (TensorProto { int64_val: vec![-5], ..two(DataType::DtInt64) }, Tensor::try_from([-5i64, -5])?),
        (
            TensorProto { uint32_val: vec![u32::MAX], ..two(DataType::DtUint32) },
            Tensor::try_from([u32::MAX; 2])?,
        ),
        (
            TensorProto { uint64_val: vec![u64::MAX], ..two(DataType::DtUint64) },
            Tensor::try_from([u64::MAX; 2])?,
        ),
        (
            TensorProto { bool_val: vec![true, false], ..of(DataType::DtBool, &[3]) },
            Tensor::try_from([Bool8::TRUE, Bool8::FALSE, Bool8::FALSE])?,
        ),
        (
            TensorProto { half_val: vec![0x3e00], ..two(DataType::DtHalf) },
            Tensor::try_from([f16::from_f32(1.5); 2])?,
        ),
        (
            TensorProto { half_val: vec![0x3fc0], ..two(DataType::DtBfloat16) },
            Tensor::try_from([bf16::from_f32(1.5); 2])?,
        ),
        (
            TensorProto { string_val: vec![b"ab".to_vec(), vec![]], ..two(DataType::DtString) },
            Tensor::strings(vec!["ab".into(), "".into()], Shape::new(&[2])?)?,
        ),
        (two(DataType::DtString), Tensor::strings(vec!["".into(), "".into()], Shape::new(&[2])?)?),
        (
            TensorProto { scomplex_val: vec![1.0, -2.0], ..of(DataType::DtComplex64, &[]) },
            Tensor::from_bytes(DType::Complex64, Shape::scalar(), &[0, 0, 128, 63, 0, 0, 0, 192])?,
        ),
        (
            TensorProto { int_val: vec![-3], ..of(DataType::DtInt4, &[2]) },
            Tensor::from_bytes(DType::Int4, Shape::new(&[2])?, &[253; 2])?,
        ),
        (
            TensorProto { float8_val: vec![3, 4], ..two(DataType::DtFloat8E5m2) },
            Tensor::from_bytes(DType::Float8E5M2, Shape::new(&[2])?, &[3, 4])?,
        ),
        // A message without a shape is a scalar. The content of a string tensor is the lengths of all strings, followed
        // by the bytes of all strings.
        (
            TensorProto { tensor_shape: None, int_val: vec![4], ..of(DataType::DtInt32, &[]) },
            Tensor::scalar(4i32),
        ),
        (
            TensorProto { tensor_content: Bytes::from_static(b"\x01\x02abc"), ..two(DataType::DtString) },
            Tensor::strings(vec!["a".into(), "bc".into()], Shape::new(&[2])?)?,
        ),
        (
            TensorProto { tensor_content: Bytes::from_static(&[0, 7]), ..two(DataType::DtBool) },
            Tensor::bools(&[false, true], Shape::new(&[2])?)?,
        ),
        (of(DataType::DtFloat, &[0, 3]), Tensor::zeros(DType::Float, Shape::new(&[0, 3])?)?),
    ];
    for (proto, expected) in cases {
        assert_eq!(tensor_from_proto(proto.clone())?, expected, "{proto:?}");
    }
    let handle = ResourceHandleProto { name: "v".into(), hash_code: 9, ..Default::default() };
    let typed = TensorProto { resource_handle_val: vec![handle.clone()], ..of(DataType::DtResource, &[]) };
    let mut content = vec![handle.encoded_len() as u8];
    content.extend(handle.encode_to_vec());
    let packed = TensorProto { tensor_content: content.into(), ..of(DataType::DtResource, &[]) };
    let read = tensor_from_proto(typed)?;
    assert_eq!(&*read.as_resources()?[0].name, "v");
    assert_eq!(tensor_from_proto(packed)?, read);
    Ok(())
}

#[test]
fn malformed_and_oversized_tensors_are_refused_before_allocation() {
    let code = |proto| tensor_from_proto(proto).map_err(|e| e.code()).err();
    let content = |dtype, sizes: &[i64], bytes: &'static [u8]| TensorProto {
        tensor_content: Bytes::from_static(bytes),
        ..of(dtype, sizes)
    };
    let unknown_rank = Some(TensorShapeProto { dim: vec![], unknown_rank: true });
    for proto in [
        content(DataType::DtFloat, &[2], b"1234567"),
        content(DataType::DtFloat, &[2], b"123456789"),
        content(DataType::DtFloat, &[0], b"1"),
        content(DataType::DtFloat, &[1 << 40], b"1"),
        content(DataType::DtString, &[2], b"\x01"),
        content(DataType::DtString, &[2], b"\x01\x02ab"),
        content(DataType::DtString, &[2], b"\x01\x01abc"),
        content(DataType::DtString, &[1], b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        content(DataType::DtString, &[1 << 40], b"\x01a"),
        content(DataType::DtResource, &[], b"\x01\xff"),
        of(DataType::DtFloat, &[-1]),
        of(DataType::DtFloat, &[1 << 40, 1 << 40]),
        of(DataType::DtInvalid, &[]),
        of(DataType::DtFloatRef, &[]),
        TensorProto { dtype: 77, ..Default::default() },
        TensorProto { dtype: i32::MIN, ..Default::default() },
        TensorProto { tensor_shape: unknown_rank, ..of(DataType::DtFloat, &[]) },
        TensorProto { tensor_shape: shape(&[1; 255]), ..of(DataType::DtFloat, &[]) },
    ] {
        assert_eq!(code(proto.clone()), Some(Code::InvalidArgument), "{proto:?}");
    }
    for proto in [
        TensorProto { float_val: vec![1.0], ..of(DataType::DtFloat, &[1 << 40]) },
        of(DataType::DtDouble, &[1 << 60]),
        of(DataType::DtString, &[1 << 40]),
        of(DataType::DtResource, &[1 << 40]),
        of(DataType::DtComplex128, &[1 << 40]),
    ] {
        assert_eq!(code(proto.clone()), Some(Code::ResourceExhausted), "{proto:?}");
    }
    assert_eq!(code(of(DataType::DtVariant, &[1 << 40])), Some(Code::ResourceExhausted));
}

#[test]
fn a_budget_covers_all_tensors_of_a_message() -> Result<()> {
    let mut budget = Budget::new(1000);
    let splat = || TensorProto { float_val: vec![1.0], ..of(DataType::DtFloat, &[200]) };
    tensor_from_proto_within(splat(), &mut budget)?;
    assert_eq!(budget.left(), 200);
    let code = tensor_from_proto_within(splat(), &mut budget).map_err(|e| e.code());
    assert_eq!(code, Err(Code::ResourceExhausted));
    Ok(())
}

#[test]
fn errors_of_named_tensors_have_the_name() -> Result<()> {
    let named = named_tensor_to_proto("x:0", &Tensor::scalar(3i64));
    let budget = &mut Budget::default();
    assert_eq!(named_tensor_from_proto(named, budget)?, ("x:0".to_owned(), Tensor::scalar(3i64)));
    let missing = NamedTensorProto { name: "y:0".into(), tensor: None };
    let error = named_tensor_from_proto(missing, budget).map_err(|e| e.to_string());
    assert_eq!(error, Err("tensor 'y:0' has no value".to_owned()));
    Ok(())
}

/// Lists and optionals, also nested, are decoded unchanged, and their encoding is TensorFlow's.
#[test]
fn variants_round_trip_with_their_tensors() -> Result<()> {
    let mut inner = TensorList::new(DType::Int32, PartialShape::from([None]));
    inner.push(Tensor::vector(&[1i32, 2])?)?;
    let elements = vec![None, Some(Tensor::variant(inner)), None];
    let mut list = TensorList::of(DType::Variant, PartialShape::unknown(), elements)?;
    list.max_num_elements = 7;
    let optional = Optional::of(vec![Tensor::from("text"), Tensor::variant(list)])?;
    let all = [Variant::new(optional), Variant::EMPTY, Variant::new(Optional::<Tensor>::NONE)];
    let tensor = Tensor::variants(all.to_vec(), Shape::new(&[3])?)?;
    let proto = tensor_to_proto(&tensor);
    let text = format!(
        "{:?}",
        tensor_from_proto(TensorProto::decode(&proto.encode_to_vec()[..]).map_err(wrong)?)?.as_variants()?
    );
    assert_eq!(text, format!("{all:?}"));
    // The metadata: 2 elements without value, with indices 0 and 2; the number of DT_VARIANT; the maximum length 7; a
    // shape of unknown rank.
    let list = &proto.variant_val[0].tensors[1].variant_val[0];
    assert_eq!(
        (&list.type_name[..], &list.metadata[..]),
        ("tensorflow::TensorList", &[2, 0, 2, 21, 7, 0x18, 1][..])
    );
    Ok(())
}

fn wrong(error: prost::DecodeError) -> graph::Error {
    graph::Error::invalid(error.to_string())
}

#[test]
fn malformed_variants_are_refused() -> Result<()> {
    let read = |type_name: &str, metadata: &[u8], tensors: Vec<TensorProto>| {
        let variant =
            VariantTensorDataProto { type_name: type_name.into(), metadata: metadata.to_vec(), tensors };
        let proto = TensorProto {
            dtype: DataType::DtVariant.into(),
            variant_val: vec![variant],
            ..Default::default()
        };
        tensor_from_proto_within(proto, &mut Budget::new(1 << 20)).map(|_| ()).map_err(|e| e.code())
    };
    let list = "tensorflow::TensorList";
    let float = || tensor_to_proto(&Tensor::from(1f32));
    assert_eq!(read(list, &[0, 1, 0], vec![float()]), Ok(()));
    assert_eq!(read(list, &[0, 3, 0], vec![float()]), Err(Code::InvalidArgument));
    assert_eq!(read(list, &[1, 9, 1, 0], vec![float()]), Err(Code::InvalidArgument));
    assert_eq!(
        read(list, &[255, 255, 255, 255, 255, 255, 255, 255, 127, 1, 0], vec![]),
        Err(Code::InvalidArgument)
    );
    assert_eq!(read(list, &[], vec![]), Err(Code::InvalidArgument));
    assert_eq!(read("tensorflow::data::Optional", &[], vec![]), Err(Code::InvalidArgument));
    assert_eq!(read("a dataset", &[], vec![]), Err(Code::Unimplemented));
    Ok(())
}
