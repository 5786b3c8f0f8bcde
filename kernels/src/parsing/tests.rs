//! Compares parsed tensors with the tensors that TensorFlow parses from the same bytes.

use crate::testing::run_op;
use bytes::Bytes;
use checkpoint::proto::Writer;
use device::Result;
use graph::{AttrValue, DType, PartialShape, Shape, Tensor};

fn strings(all: &[&[u8]]) -> Result<Tensor> {
    let shape = Shape::new(&[all.len()])?;
    Ok(Tensor::strings(all.iter().map(|s| Bytes::copy_from_slice(s)).collect(), shape)?)
}

#[test]
fn decode_raw_reads_both_byte_orders() -> Result<()> {
    let decode = |all: &[&[u8]], dtype: DType, little: bool| {
        run_op("DecodeRaw", &[strings(all)?], &[("out_type", dtype.into()), ("little_endian", little.into())])
    };
    let out = decode(&[b"abcd", b"efgh"], DType::Int16, true)?;
    assert_eq!(out, [Tensor::try_from([[25185i16, 25699], [26213, 26727]])?]);
    assert_eq!(decode(&[b"abcd"], DType::Int16, false)?, [Tensor::try_from([[24930i16, 25444]])?]);
    assert_eq!(decode(&[b"", b""], DType::Int16, true)?[0].shape(), &Shape::new(&[2, 0])?);
    assert_eq!(
        decode(&[b"\x00\x02"], DType::Bool, true)?,
        [Tensor::bools(&[false, true], Shape::new(&[1, 2])?)?]
    );
    assert!(decode(&[b"abcd", b"ab"], DType::Int16, true).is_err());
    assert!(decode(&[b"abc"], DType::Int16, true).is_err());
    let padded = |all: &[&[u8]], length: i32| {
        run_op("DecodePaddedRaw", &[strings(all)?, length.into()], &[("out_type", DType::Int16.into())])
    };
    assert_eq!(padded(&[b"abcdxx", b"ef"], 4)?, [Tensor::try_from([[25185i16, 25699], [26213, 0]])?]);
    assert!(padded(&[b"ab"], 3).is_err());
    assert!(padded(&[b"ab"], 0).is_err());
    Ok(())
}

#[test]
fn columns_of_csv() -> Result<()> {
    let decode = |records: &[&[u8]], attrs: &[(&str, AttrValue)]| {
        let defaults = [Tensor::try_from([0])?, Tensor::try_from([0.5f32])?, strings(&[b"d"])?];
        let types = ("OUT_TYPE", vec![DType::Int32, DType::Float, DType::String].into());
        run_op("DecodeCSV", &[&[strings(records)?], &defaults[..]].concat(), &[&[types], attrs].concat())
    };
    let out = decode(&[b"1,2.5,x", b"3,,", b"4, 5 ,\"a,\"\"b\""], &[])?;
    assert_eq!(out[0], Tensor::try_from([1, 3, 4])?);
    assert_eq!(out[1], Tensor::try_from([2.5f32, 0.5, 5.0])?);
    assert_eq!(out[2], strings(&[b"x", b"d", b"a,\"b"])?);
    let out = decode(&[b"1;2;\"a;b\""], &[("field_delim", ";".into())])?;
    assert_eq!(out[2], strings(&[b"a;b"])?);
    let out = decode(&[b"1,2,3,4"], &[("select_cols", vec![0i64, 1, 3].into())])?;
    assert_eq!(out[2], strings(&[b"4"])?);
    let told = |record: &[u8]| decode(&[record], &[]).map_err(|e| e.to_string()).err();
    for (record, text) in [
        (&b"1,2"[..], "Expect 3 fields but have 2 in record 0"),
        (b"", "Expect 3 fields but have 0 in record 0"),
        (b"1,2,\"a", "Quoted field has to end with quote followed by delim or end"),
        (b"1,2,a\"b", "Unquoted fields cannot have quotes/CRLFs inside"),
        (b"1,2,\"a\"b", "Quote inside a string has to be escaped by another quote"),
        (b"x,1,1", "Field 0 in record 0 is not a valid int32: x"),
    ] {
        assert_eq!(told(record).as_deref(), Some(text));
    }
    Ok(())
}

/// Returns a serialized example. Each feature is a key, the field number of its list in `Feature`, and the encoded
/// list.
fn example(features: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let mut example = Writer::new();
    example.message(1, |all| {
        for (key, kind, list) in features {
            all.message(1, |entry| {
                entry.string(1, key.as_bytes()).message(2, |feature| _ = feature.bytes(*kind, list));
            });
        }
    });
    example.finish()
}

fn examples() -> [Vec<u8>; 2] {
    let ints = |values: [i64; 2]| {
        let mut list = Writer::new();
        list.packed_ints(1, values);
        list.finish()
    };
    let mut text = Writer::new();
    text.bytes(1, b"x").bytes(1, b"y");
    let float = [&b"\x0a\x04"[..], &0.5f32.to_le_bytes()].concat();
    [
        example(&[("i", 3, &ints([1, 2])), ("f", 2, &float), ("s", 1, &text.finish())]),
        example(&[("i", 3, &ints([3, 4]))]),
    ]
}

fn v2(serialized: Tensor, keys: [&[&[u8]]; 3], default: Tensor, shape: PartialShape) -> Result<Vec<Tensor>> {
    let names = strings(&[])?;
    let inputs =
        [serialized, names, strings(keys[0])?, strings(keys[1])?, strings(keys[2])?, default.clone()];
    let attrs = [
        ("Tdense", vec![default.dtype()].into()),
        ("num_sparse", 1i64.into()),
        ("sparse_types", vec![DType::String].into()),
        ("ragged_value_types", vec![DType::Int64].into()),
        ("ragged_split_types", vec![DType::Int32].into()),
        ("dense_shapes", AttrValue::List(graph::AttrList::Shape(vec![shape]))),
    ];
    run_op("ParseExampleV2", &inputs, &attrs)
}

#[test]
fn examples_become_dense_sparse_and_ragged_tensors() -> Result<()> {
    let [a, b] = examples();
    let keys: [&[&[u8]]; 3] = [&[b"s"], &[b"f"], &[b"i"]];
    let out = v2(strings(&[&a, &b])?, keys, Tensor::scalar(7f32), PartialShape::scalar())?;
    assert_eq!(out[0], Tensor::try_from([[0i64, 0], [0, 1]])?);
    assert_eq!(out[1], strings(&[b"x", b"y"])?);
    assert_eq!(out[2], Tensor::try_from([2i64, 2])?);
    assert_eq!(out[3], Tensor::try_from([0.5f32, 7.0])?);
    assert_eq!(out[4], Tensor::try_from([1i64, 2, 3, 4])?);
    assert_eq!(out[5], Tensor::try_from([0, 2, 4])?);
    let out = v2(strings(&[&a, &b])?, keys, Tensor::scalar(7f32), PartialShape::vector(None))?;
    assert_eq!(out[3], Tensor::try_from([[0.5f32], [7.0]])?);
    let out = v2(Tensor::string(a.clone()), keys, Tensor::scalar(7f32), PartialShape::scalar())?;
    assert_eq!(out[0], Tensor::try_from([[0i64], [1]])?);
    assert_eq!(out[2], Tensor::try_from([2i64])?);
    assert_eq!(out[3], Tensor::scalar(0.5f32));
    let required = Tensor::zeros(DType::Float, Shape::new(&[0])?)?;
    let missing = v2(strings(&[&a, &b])?, keys, required, PartialShape::scalar()).map_err(|e| e.to_string());
    let text = "Name: <unknown>, Feature: f (data type: float) is required but could not be found.";
    assert_eq!(missing, Err(text.to_owned()));
    let other: [&[&[u8]]; 3] = [&[b"i"], &[b"f"], &[b"i"]];
    let told =
        v2(strings(&[&a])?, other, Tensor::scalar(7f32), PartialShape::scalar()).map_err(|e| e.to_string());
    assert!(
        told.is_err_and(|e| e.starts_with("Name: <unknown>, Key: i, Index: 0.  Data types don't match."))
    );
    assert!(v2(strings(&[b"junk"])?, keys, Tensor::scalar(7f32), PartialShape::scalar()).is_err());
    Ok(())
}

#[test]
fn tensors_as_messages_and_compressed_strings() -> Result<()> {
    let tensor = Tensor::try_from([1f32, 2.0])?;
    let types = ("T", DType::Float.into());
    let serialized = run_op("SerializeTensor", std::slice::from_ref(&tensor), &[types])?;
    let parse = |s: &[Tensor], dtype: DType| run_op("ParseTensor", s, &[("out_type", dtype.into())]);
    assert_eq!(parse(&serialized, DType::Float)?, [tensor]);
    let wrong = parse(&serialized, DType::Int32).map_err(|e| e.to_string());
    assert_eq!(wrong, Err("Type mismatch between parsed tensor (float) and dtype (int32)".into()));
    assert!(parse(&["junk".into()], DType::Float).is_err());
    // "abc", compressed with zlib.
    let packed = Tensor::string(&b"x\x9cKLJ\x06\x00\x02M\x01'"[..]);
    let zlib = ("compression_type", AttrValue::from("ZLIB"));
    assert_eq!(run_op("DecodeCompressed", &[packed], std::slice::from_ref(&zlib))?, [Tensor::from("abc")]);
    assert!(run_op("DecodeCompressed", &["junk".into()], &[zlib]).is_err());
    assert!(run_op("DecodeCompressed", &["a".into()], &[("compression_type", "FOO".into())]).is_err());
    Ok(())
}
