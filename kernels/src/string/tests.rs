//! Compares string kernels with TensorFlow's results.

use crate::testing::run_op;
use bytes::Bytes;
use device::Result;
use graph::{AttrValue, DType, Shape, Tensor};

fn strings(all: &[&[u8]]) -> Result<Tensor> {
    let shape = Shape::new(&[all.len()])?;
    Ok(Tensor::strings(all.iter().map(|s| Bytes::copy_from_slice(s)).collect(), shape)?)
}

fn texts(tensor: &Tensor) -> Result<Vec<String>> {
    Ok(tensor.as_strings()?.iter().map(|s| String::from_utf8_lossy(s).into_owned()).collect())
}

fn one(op: &str, inputs: &[Tensor], attrs: &[(&str, AttrValue)]) -> Result<Vec<String>> {
    texts(&run_op(op, inputs, attrs)?[0])
}

#[test]
fn hashes_equal_tensorflows() -> Result<()> {
    let long = [b'x'; 100];
    let input = strings(&[b"", b"a", b"hello world", &long, &[b'y'; 1000]])?;
    let buckets = ("num_buckets", AttrValue::from(1i64 << 40));
    let hashed =
        run_op("StringToHashBucketFast", std::slice::from_ref(&input), std::slice::from_ref(&buckets))?;
    let expected = [254201053263i64, 436859794915, 307288780827, 791688940063, 1007259802433];
    assert_eq!(hashed[0].values::<i64>()?, expected);
    let input = strings(&[b"", b"a", b"hello world", &long, b"\xff\xfe"])?;
    let hashed = run_op("StringToHashBucket", &[input], std::slice::from_ref(&buckets))?;
    let expected = [142163811899i64, 825286642172, 923794420719, 715348868359, 460121057560];
    assert_eq!(hashed[0].values::<i64>()?, expected);
    let input = strings(&[b"", b"a", b"hello world", &long])?;
    let key = ("key", vec![123i64, -5].into());
    let hashed = run_op("StringToHashBucketStrong", &[input], &[buckets, key])?;
    let expected = [484478145962i64, 873944274764, 440255962731, 479055640294];
    assert_eq!(hashed[0].values::<i64>()?, expected);
    Ok(())
}

#[test]
fn patterns_have_re2_syntax() -> Result<()> {
    let full = |pattern: &str, s: &str| -> Result<bool> {
        let found = run_op("StaticRegexFullMatch", &[s.into()], &[("pattern", pattern.into())])?;
        Ok(found[0].item::<graph::Bool8>()?.get())
    };
    for (pattern, s, expected) in [
        ("^s3://.*", "s3://bucket", true),
        ("^s3://.*", "/tmp/x", false),
        ("a|ab", "ab", true),
        ("(?i)A", "a", true),
        ("[[:alpha:]]+", "aa", true),
        (r"\pL+", "é", true),
        (r"\d", "٣", false),
        (r"[\w&&b]+", "a&", true),
        (r"\Qa.b\E", "a.b", true),
        (r"\Qa.b\E", "axb", false),
        ("a.b", "a\nb", false),
        ("[]a]", "]", true),
        (r"\C\C", "é", true),
    ] {
        assert_eq!(full(pattern, s)?, expected, "{pattern} {s}");
    }
    for wrong in ["(a", "a(?=b)", r"\1", "a)(b"] {
        let error = full(wrong, "a").map_err(|e| e.to_string());
        assert!(
            error.as_ref().is_err_and(|e| e.starts_with(&format!("Invalid pattern: {wrong}, error: "))),
            "{error:?}"
        );
    }
    for (s, pattern, rewrite, expected) in [
        ("abcabc", "b(c)", r"[\1\0]", "a[cbc]a[cbc]"),
        ("abc", "", "-", "-a-b-c-"),
        ("baac", "a*", "-", "-b-c-"),
        ("é", "", "-", "-é-"),
        ("abc", "b", r"\2", "abc"),
        ("abc", "b", r"\\", r"a\c"),
        ("abc", "b", "$1", "a$1c"),
        ("abc", "b", r"\x", "ac"),
        ("bac", "(x)?a", r"[\1]", "b[]c"),
    ] {
        let inputs = [s.into(), pattern.into(), rewrite.into()];
        assert_eq!(one("RegexReplace", &inputs, &[])?, [expected], "{pattern} {rewrite}");
    }
    let first = ("replace_global", false.into());
    assert_eq!(one("RegexReplace", &["abab".into(), "b".into(), "x".into()], &[first])?, ["axab"]);
    Ok(())
}

#[test]
fn pieces_come_row_by_row() -> Result<()> {
    let split = |op: &str,
                 input: &[&[u8]],
                 by: &str,
                 attrs: &[(&str, AttrValue)]|
     -> Result<(Vec<i64>, Vec<String>, Vec<i64>)> {
        let out = run_op(op, &[strings(input)?, by.into()], attrs)?;
        Ok((out[0].to_i64s()?, texts(&out[1])?, out[2].to_i64s()?))
    };
    let got = split("StringSplit", &[b"a b  c", b"", b"d"], " ", &[])?;
    assert_eq!(
        got,
        (vec![0, 0, 0, 1, 0, 2, 2, 0], ["a", "b", "c", "d"].map(String::from).to_vec(), vec![3, 3])
    );
    let got = split("StringSplit", &[b"a b  c", b" "], " ", &[("skip_empty", false.into())])?.1;
    assert_eq!(got, ["a", "b", "", "c", "", ""]);
    assert_eq!(split("StringSplit", &[b""], " ", &[("skip_empty", false.into())])?.1, <[&str; 0]>::default());
    assert_eq!(split("StringSplit", &[b"abc"], "", &[])?.1, ["a", "b", "c"]);
    assert_eq!(split("StringSplitV2", &[b"a b  c", b"", b"  d\t e "], "", &[])?.1, ["a", "b", "c", "d", "e"]);
    assert_eq!(split("StringSplitV2", &[b"a<>b<><>c", b"<>"], "<>", &[])?.1, ["a", "b", "", "c", "", ""]);
    let once = [("maxsplit", AttrValue::from(1i64))];
    assert_eq!(split("StringSplitV2", &[b"a b c d", b" a  b c "], "", &once)?.1, ["a", "b c d", "a", "b c "]);
    assert_eq!(split("StringSplitV2", &[b"a "], "", &once)?.1, ["a", ""]);
    assert_eq!(split("StringSplitV2", &[b"a,b,c"], ",", &once)?.1, ["a", "b,c"]);
    Ok(())
}

#[test]
fn numbers_are_read_and_written_as_in_c() -> Result<()> {
    let floats = Tensor::try_from([1.5f32, -0.0, 1e10, f32::NAN, f32::NEG_INFINITY, 1e-7])?;
    let written = |attrs: &[(&str, AttrValue)]| {
        one("AsString", std::slice::from_ref(&floats), &[&[("T", DType::Float.into())], attrs].concat())
    };
    let width = ("width", AttrValue::from(12i64));
    assert_eq!(written(&[])?, ["1.500000", "-0.000000", "10000000000.000000", "nan", "-inf", "0.000000"]);
    assert_eq!(written(&[("shortest", true.into())])?, ["1.5", "-0", "1e+10", "nan", "-inf", "1e-07"]);
    let scientific = written(&[("scientific", true.into()), ("precision", 2i64.into())])?;
    assert_eq!(scientific, ["1.50e+00", "-0.00e+00", "1.00e+10", "nan", "-inf", "1.00e-07"]);
    assert_eq!(written(&[width.clone(), ("fill", "0".into())])?[..2], ["00001.500000", "-0000.000000"]);
    assert_eq!(written(&[width, ("fill", "-".into())])?[..2], ["1.500000    ", "-0.000000   "]);
    let read = |s: &str, dtype: DType| run_op("StringToNumber", &[s.into()], &[("out_type", dtype.into())]);
    for (s, value) in [
        (" 1 ", 1.0),
        ("1e3", 1000.0),
        ("0x10", 16.0),
        ("0x1p3", 8.0),
        (".5", 0.5),
        ("-Infinity", f32::NEG_INFINITY),
    ] {
        assert_eq!(read(s, DType::Float)?[0].item::<f32>()?, value, "{s}");
    }
    assert_eq!(read("+3", DType::UInt32)?[0].item::<u32>()?, 3);
    for (s, dtype) in [
        ("1.5", DType::Int32),
        ("", DType::Float),
        ("1 2", DType::Float),
        ("-0", DType::UInt64),
        ("3000000000", DType::Int32),
    ] {
        let text = format!("StringToNumberOp could not correctly convert string: {s}");
        assert_eq!(read(s, dtype).map_err(|e| e.to_string()), Err(text));
    }
    Ok(())
}

#[test]
fn substrings_and_case_conversion() -> Result<()> {
    let words = strings(&[b"hello", b"wor"])?;
    let substr = |pos: Tensor, len: Tensor, attrs: &[(&str, AttrValue)]| {
        one("Substr", &[words.clone(), pos, len], &[&[("T", DType::Int32.into())], attrs].concat())
    };
    assert_eq!(substr((-2).into(), 5.into(), &[])?, ["lo", "or"]);
    assert_eq!(substr(Tensor::try_from([1, 2])?, Tensor::try_from([1, 10])?, &[])?, ["e", "r"]);
    assert_eq!(substr((-2).into(), (-1).into(), &[])?, ["lo", "or"]);
    let wrong = substr(4.into(), 1.into(), &[]).map_err(|e| e.to_string());
    assert_eq!(wrong, Err("pos 4 out of range for string b'wor' at index 1".into()));
    let characters = ("unit", AttrValue::from("UTF8_CHAR"));
    let inputs = ["héllo".into(), 1.into(), 2.into()];
    assert_eq!(one("Substr", &inputs, &[("T", DType::Int32.into()), characters.clone()])?, ["él"]);
    let inputs = ["héllo".into(), 1.into(), (-1).into()];
    assert_eq!(one("Substr", &inputs, &[("T", DType::Int32.into()), characters.clone()])?, [""]);
    assert_eq!(run_op("StringLength", &["é\u{1f600}".into()], &[characters])?[0].item::<i32>()?, 2);
    assert_eq!(one("StringLower", &["ABC É".into()], &[])?, ["abc É"]);
    assert_eq!(one("StringUpper", &["abc éß".into()], &[("encoding", "utf-8".into())])?, ["ABC ÉSS"]);
    assert_eq!(one("StringStrip", &[" \t a b\x0b\r".into()], &[])?, ["a b"]);
    Ok(())
}

#[test]
fn strings_are_joined() -> Result<()> {
    let separator = |s: &str| ("separator", AttrValue::from(s));
    let inputs = ["a".into(), strings(&[b"b", b"c"])?];
    assert_eq!(one("StringJoin", &inputs, &[separator("-"), ("N", 2i64.into())])?, ["a-b", "a-c"]);
    let square = strings(&[b"a", b"b", b"c", b"d"])?.reshaped(Shape::new(&[2, 2])?)?;
    let reduced = |axes: Tensor| one("ReduceJoin", &[square.clone(), axes], &[separator(".")]);
    assert_eq!(reduced(Tensor::try_from([0, 1])?)?, ["a.c.b.d"]);
    assert_eq!(reduced(Tensor::try_from([1, 0])?)?, ["a.b.c.d"]);
    assert_eq!(reduced(0.into())?, ["a.c", "b.d"]);
    assert!(reduced(2.into()).is_err());
    let inputs = [strings(&[b"a", b"b", b"c"])?, Tensor::try_from([1, 0, 1])?, 3.into()];
    let types = [("Tindices", DType::Int32.into()), separator(".")];
    assert_eq!(one("UnsortedSegmentJoin", &inputs, &types)?, ["b", "a.c", ""]);
    let inputs = [strings(&[b"", b"", b"c", b""])?, Tensor::try_from([0, 0, 0, 0])?, 1.into()];
    assert_eq!(one("UnsortedSegmentJoin", &inputs, &types)?, ["c."]);
    Ok(())
}

#[test]
fn base64_is_url_safe() -> Result<()> {
    let input = strings(&[b"hello?>", b"\xff\xfe\xfd"])?;
    assert_eq!(one("EncodeBase64", &[input], &[])?, ["aGVsbG8_Pg", "__79"]);
    assert_eq!(one("EncodeBase64", &["hello".into()], &[("pad", true.into())])?, ["aGVsbG8="]);
    let decoded = run_op("DecodeBase64", &[strings(&[b"aGVsbG8", b"aGVsbG8=", b"aa==", b""])?], &[])?;
    assert_eq!(decoded[0].as_strings()?, [&b"hello"[..], b"hello", b"i", b""]);
    for wrong in ["a+/=", "a", "aa="] {
        assert!(one("DecodeBase64", &[wrong.into()], &[]).is_err(), "{wrong}");
    }
    Ok(())
}
