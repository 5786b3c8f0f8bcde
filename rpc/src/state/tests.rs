use super::read::MAX_HEADER_BLOCK;
use super::*;
use crate::frame::{
    ACK, END_HEADERS, END_STREAM, FrameHeader, HEADER_LEN, PADDED, PREFACE, WITH_PRIORITY, put,
};
use crate::hpack::put_field;
use futures::task::noop_waker_ref;

type SentFrame = (u8, u8, u32, Vec<u8>);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put(kind, flags, stream, payload, &mut out);
    out
}

fn header_block() -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [(":method", "POST"), (":path", "/a.B/C"), ("content-type", "application/grpc")] {
        put_field(name.as_bytes(), value.as_bytes(), &mut block);
    }
    block
}

fn headers(stream: u32) -> Vec<u8> {
    frame(kind::HEADERS, END_HEADERS, stream, &header_block())
}

fn settings(all: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (number, value) in all {
        payload.extend_from_slice(&number.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    frame(kind::SETTINGS, 0, 0, &payload)
}

fn window_update(stream: u32, more: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &more.to_be_bytes())
}

/// Returns the state of a connection whose client has sent its preface and settings.
fn connected() -> ConnectionState {
    let mut state = ConnectionState::new();
    read(&mut state, &[&PREFACE[..], &settings(&[])].concat());
    sent_frames(&mut state);
    state
}

fn read(state: &mut ConnectionState, bytes: &[u8]) -> ReadEvents {
    let mut events = ReadEvents::default();
    assert_eq!(state.read(bytes, &mut events), Ok(bytes.len()));
    events
}

/// Removes and decodes the frames that are queued for the client.
fn sent_frames(state: &mut ConnectionState) -> Vec<SentFrame> {
    let mut bytes = Vec::new();
    loop {
        state.fill_outbox();
        if state.out.is_empty() {
            break;
        }
        let before = bytes.len();
        state.out.slices().iter().for_each(|slice| bytes.extend_from_slice(slice));
        state.out.advance(bytes.len() - before);
    }
    let mut rest = &bytes[..];
    let mut frames = Vec::new();
    while let Some((head, behind)) = rest.split_first_chunk::<HEADER_LEN>() {
        let head = FrameHeader::read(head);
        let (payload, behind) = behind.split_at(head.len);
        frames.push((head.kind, head.flags, head.stream, payload.to_vec()));
        rest = behind;
    }
    frames
}

fn resets(state: &mut ConnectionState) -> Vec<(u32, u32)> {
    let number = |payload: &[u8]| crate::frame::read_u32(payload).unwrap_or(u32::MAX);
    let frames = sent_frames(state).into_iter().filter(|(kind, ..)| *kind == kind::RST_STREAM);
    frames.map(|(_, _, stream, payload)| (stream, number(&payload))).collect()
}

#[test]
fn calls_are_read_from_any_split_of_their_bytes() {
    let block = header_block();
    let (first, second) = block.split_at(10);
    let mut padded = vec![3];
    padded.extend_from_slice(b"cd\0\0\0");
    let with_priority = [&[2, 0, 0, 0, 0, 16][..], &block, &[0; 2]].concat();
    let bytes = [
        &PREFACE[..],
        &settings(&[(99, 1)]),
        &headers(1),
        &frame(kind::DATA, 0, 1, b"ab"),
        // Frames of other streams and frames of unknown type may come between the frames of a request.
        &frame(kind::HEADERS, 0, 3, first),
        &frame(kind::CONTINUATION, END_HEADERS, 3, second),
        &frame(200, 0xff, 77, b"?"),
        &frame(kind::DATA, PADDED, 1, &padded),
        &frame(kind::HEADERS, END_HEADERS | END_STREAM | PADDED | WITH_PRIORITY, 5, &with_priority),
        &frame(kind::PRIORITY, 0, 9, &[0; 5]),
        &frame(kind::PING, 0, 0, b"12345678"),
        &frame(kind::DATA, END_STREAM, 1, b""),
    ]
    .concat();
    for step in [1, 2, 7, 30, bytes.len()] {
        let (mut state, mut events) = (ConnectionState::new(), ReadEvents::default());
        let (mut buffered, mut come) = (Vec::new(), &bytes[..]);
        while !come.is_empty() {
            let (now, later) = come.split_at(come.len().min(step));
            come = later;
            buffered.extend_from_slice(now);
            let taken = state.read(&buffered, &mut events);
            assert!(taken.is_ok(), "{taken:?}");
            buffered.drain(..taken.unwrap_or(0));
        }
        let begun: Vec<u32> = events.begun.iter().map(|(stream, _)| *stream).collect();
        assert!(begun == [1, 3, 5] && buffered.is_empty(), "{step}: {begun:?}");
        assert!(events.begun.iter().all(|(_, fields)| fields.len() == 3 && fields[1].value == "/a.B/C"));
        assert_eq!(state.take_whole_request(1).as_deref(), Some(&b"abcd"[..]));
        assert_eq!((state.take_whole_request(3), state.take_whole_request(5)), (None, Some(Bytes::new())));
        let pong = (kind::PING, ACK, 0, b"12345678".to_vec());
        assert!(sent_frames(&mut state).contains(&pong));
    }
}

#[test]
fn answers_respect_flow_control_windows() {
    let mut state = connected();
    read(&mut state, &settings(&[(setting::INITIAL_WINDOW_SIZE, 10)]));
    read(&mut state, &[headers(1), headers(3)].concat());
    sent_frames(&mut state);
    let message = |byte| [Bytes::from(vec![byte; 5]), Bytes::from(vec![byte; 20])];
    let lens = |state: &mut ConnectionState| {
        let frames =
            sent_frames(state).into_iter().filter(|(kind, ..)| [kind::DATA, kind::HEADERS].contains(kind));
        frames
            .map(|(kind, flags, stream, data)| {
                (stream, if kind == kind::DATA { data.len() } else { 0 }, flags)
            })
            .collect::<Vec<_>>()
    };
    state.answer(1, message(1));
    state.answer(3, message(3));
    let expected = [(1, 0, 4), (3, 0, 4), (1, 5, 0), (3, 5, 0), (1, 5, 0), (3, 5, 0)];
    assert_eq!(lens(&mut state), expected);
    read(&mut state, &window_update(3, 1));
    assert_eq!(lens(&mut state), [(3, 1, 0)]);
    // The windows of all streams become smaller, and then larger again.
    read(&mut state, &settings(&[(setting::INITIAL_WINDOW_SIZE, 5)]));
    read(&mut state, &window_update(1, 5));
    assert_eq!(lens(&mut state), []);
    read(&mut state, &settings(&[(setting::INITIAL_WINDOW_SIZE, 100)]));
    let mut left = lens(&mut state);
    left.sort_by_key(|(stream, ..)| *stream);
    assert_eq!(left, [(1, 15, 0), (1, 0, 5), (3, 14, 0), (3, 0, 5)]);
    assert!(state.streams.is_empty());

    // Answers are also limited by the connection's window, a part of which the bytes sent so far have used.
    read(&mut state, &[settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 20)]), headers(5)].concat());
    sent_frames(&mut state);
    state.answer(5, [Bytes::from(vec![5; 100_000]), Bytes::new()]);
    let sent: usize = lens(&mut state).iter().map(|(_, len, _)| len).sum();
    assert_eq!(sent, INITIAL_WINDOW as usize - 50);
    read(&mut state, &window_update(0, 1 << 20));
    let sent: usize = lens(&mut state).iter().map(|(_, len, _)| len).sum();
    assert_eq!(sent, 100_050 - INITIAL_WINDOW as usize);
}

#[test]
fn protocol_violations_end_the_connection() {
    let too_many = vec![0; MAX_HEADER_BLOCK + 1];
    let cases: &[(&str, Vec<u8>, Reason)] = &[
        ("message of no call", frame(kind::DATA, 0, 1, b"x"), Reason::PROTOCOL_ERROR),
        ("message of the connection", frame(kind::DATA, 0, 0, b"x"), Reason::PROTOCOL_ERROR),
        (
            "padded with more than it is",
            [headers(1), frame(kind::DATA, PADDED, 1, &[9, 0])].concat(),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "padded and empty",
            [headers(1), frame(kind::DATA, PADDED, 1, &[])].concat(),
            Reason::FRAME_SIZE_ERROR,
        ),
        ("server's stream", headers(2), Reason::PROTOCOL_ERROR),
        ("fields of the connection", headers(0), Reason::PROTOCOL_ERROR),
        (
            "fields that go on elsewhere",
            [frame(kind::HEADERS, 0, 1, b""), frame(kind::CONTINUATION, 4, 3, b"")].concat(),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "a ping between fields",
            [frame(kind::HEADERS, 0, 1, b""), frame(kind::PING, 0, 0, &[0; 8])].concat(),
            Reason::PROTOCOL_ERROR,
        ),
        ("continuation of nothing", frame(kind::CONTINUATION, 4, 1, b""), Reason::PROTOCOL_ERROR),
        (
            "endless fields",
            [frame(kind::HEADERS, 0, 1, b""), frame(kind::CONTINUATION, 0, 1, b"")].concat(),
            Reason::ENHANCE_YOUR_CALM,
        ),
        ("long fields", frame(kind::HEADERS, END_HEADERS, 1, &too_many), Reason::ENHANCE_YOUR_CALM),
        ("unreadable fields", frame(kind::HEADERS, END_HEADERS, 1, &[0xff, 0xff]), Reason::COMPRESSION_ERROR),
        (
            "fields padded with more",
            frame(kind::HEADERS, END_HEADERS | PADDED, 1, &[200, 0]),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "short priority in fields",
            frame(kind::HEADERS, END_HEADERS | WITH_PRIORITY, 1, &[0; 3]),
            Reason::PROTOCOL_ERROR,
        ),
        ("priority of nothing", frame(kind::PRIORITY, 0, 0, &[0; 5]), Reason::PROTOCOL_ERROR),
        ("end of nothing", frame(kind::RST_STREAM, 0, 0, &[0; 4]), Reason::PROTOCOL_ERROR),
        ("end of what never began", frame(kind::RST_STREAM, 0, 7, &[0; 4]), Reason::PROTOCOL_ERROR),
        (
            "short end",
            [headers(1), frame(kind::RST_STREAM, 0, 1, &[0; 3])].concat(),
            Reason::FRAME_SIZE_ERROR,
        ),
        ("settings of a stream", frame(kind::SETTINGS, 0, 1, b""), Reason::PROTOCOL_ERROR),
        ("cut settings", frame(kind::SETTINGS, 0, 0, &[0; 7]), Reason::FRAME_SIZE_ERROR),
        ("acknowledged with words", frame(kind::SETTINGS, ACK, 0, &[0; 6]), Reason::FRAME_SIZE_ERROR),
        ("no such window", settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 31)]), Reason::FLOW_CONTROL_ERROR),
        ("no such frame", settings(&[(setting::MAX_FRAME_SIZE, 100)]), Reason::PROTOCOL_ERROR),
        ("no such push", settings(&[(setting::ENABLE_PUSH, 2)]), Reason::PROTOCOL_ERROR),
        ("a promise", frame(kind::PUSH_PROMISE, 4, 1, &[0; 4]), Reason::PROTOCOL_ERROR),
        ("ping of a stream", frame(kind::PING, 0, 1, &[0; 8]), Reason::PROTOCOL_ERROR),
        ("short ping", frame(kind::PING, 0, 0, &[0; 7]), Reason::FRAME_SIZE_ERROR),
        ("leave of a stream", frame(kind::GOAWAY, 0, 1, &[0; 8]), Reason::PROTOCOL_ERROR),
        ("no growth", window_update(0, 0), Reason::PROTOCOL_ERROR),
        (
            "too much growth",
            [window_update(0, WINDOW), window_update(0, WINDOW)].concat(),
            Reason::FLOW_CONTROL_ERROR,
        ),
        ("window of nothing", window_update(9, 1), Reason::PROTOCOL_ERROR),
        ("long frame", frame(kind::DATA, 0, 1, &vec![0; MAX_FRAME + 1]), Reason::FRAME_SIZE_ERROR),
        ("long ping", frame(kind::PING, 0, 0, &too_many), Reason::FRAME_SIZE_ERROR),
    ];
    for (what, bytes, reason) in cases {
        let mut events = ReadEvents::default();
        let result = connected().read(bytes, &mut events);
        assert_eq!(result.map_err(|violation| violation.reason), Err(*reason), "{what}");
    }
    for start in [&b"GET / HTTP/1.1\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r", b"\0"] {
        assert!(ConnectionState::new().read(start, &mut ReadEvents::default()).is_err());
    }
}

#[test]
fn stream_errors_reset_only_the_stream() {
    let cases: &[(&str, Vec<u8>, Reason)] = &[
        (
            "more after the end",
            [frame(kind::DATA, END_STREAM, 1, b"x"), frame(kind::DATA, 0, 1, b"y")].concat(),
            Reason::STREAM_CLOSED,
        ),
        ("fields that end nothing", headers(1), Reason::PROTOCOL_ERROR),
        ("no growth", window_update(1, 0), Reason::PROTOCOL_ERROR),
        ("too much growth", window_update(1, WINDOW), Reason::FLOW_CONTROL_ERROR),
        ("short priority", frame(kind::PRIORITY, 0, 1, &[0; 3]), Reason::FRAME_SIZE_ERROR),
    ];
    for (what, bytes, reason) in cases {
        let mut state = connected();
        read(&mut state, &[headers(1), headers(3)].concat());
        read(&mut state, bytes);
        assert_eq!(resets(&mut state), [(1, reason.0)], "{what}");
        assert_eq!(state.poll_part(1, true, noop_waker_ref()), Some(RequestPart::Gone), "{what}");
        // The call on stream 3 continues.
        read(&mut state, &frame(kind::DATA, END_STREAM, 3, b"z"));
        assert_eq!(state.take_whole_request(3).as_deref(), Some(&b"z"[..]), "{what}");
    }
}

#[test]
fn requests_are_read_in_parts_or_whole() {
    let mut state = connected();
    let waker = noop_waker_ref();
    read(&mut state, &[headers(1), frame(kind::DATA, 0, 1, b"ab")].concat());
    assert_eq!(state.take_whole_request(1), None);
    assert_eq!(state.poll_part(1, false, waker), Some(RequestPart::Bytes(Bytes::from_static(b"ab"))));
    assert_eq!(state.poll_part(1, false, waker), None);
    read(&mut state, &frame(kind::DATA, 0, 1, b"cd"));
    assert!(state.wakers.pop().is_some() && state.poll_part(1, true, waker).is_none());
    read(&mut state, &frame(kind::DATA, 0, 1, b"ef"));
    assert!(state.wakers.is_empty());
    // Trailing header fields end the request as well.
    read(&mut state, &frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &header_block()));
    assert!(state.wakers.pop().is_some());
    assert_eq!(state.poll_part(1, true, waker), Some(RequestPart::Bytes(Bytes::from_static(b"cdef"))));
    assert_eq!(state.poll_part(1, true, waker), Some(RequestPart::End));
}

#[test]
fn request_windows_are_granted_again() {
    let mut state = connected();
    read(&mut state, &headers(1));
    let part = frame(kind::DATA, 0, 1, &vec![7; MAX_FRAME]);
    let mut grown = 0;
    for _ in 0..WINDOW as usize / MAX_FRAME + 10 {
        read(&mut state, &part);
        assert!(
            matches!(state.poll_part(1, false, noop_waker_ref()), Some(RequestPart::Bytes(b)) if b.len() == MAX_FRAME)
        );
        grown += sent_frames(&mut state).iter().filter(|(kind, ..)| *kind == kind::WINDOW_UPDATE).count();
    }
    // Each window is granted again when half of it is used: twice for the connection, and twice for the stream.
    assert_eq!(grown, 2 * 2);
}

#[test]
fn data_beyond_the_window_is_refused() {
    let mut state = connected();
    read(&mut state, &headers(1));
    state.window = 10;
    let result = state.read(&frame(kind::DATA, 0, 1, &[0; 11]), &mut ReadEvents::default());
    assert_eq!(result.map_err(|violation| violation.reason), Err(Reason::FLOW_CONTROL_ERROR));
}

#[test]
fn cancelled_calls_are_removed() {
    let mut state = connected();
    read(&mut state, &headers(1));
    state.answer(1, [Bytes::from(vec![0; 100_000]), Bytes::new()]);
    read(&mut state, &frame(kind::RST_STREAM, 0, 1, &8u32.to_be_bytes()));
    assert!(state.streams.is_empty());
    state.answer(1, [Bytes::new(), Bytes::new()]);
    assert!(!state.begin_answer(1, &[], true) && state.poll_capacity(1, noop_waker_ref()).is_none());
    // Frames that the client sent before it received the stream's end are ignored.
    read(&mut state, &[frame(kind::DATA, END_STREAM, 1, b"x"), window_update(1, 5)].concat());
    assert!(sent_frames(&mut state).iter().all(|(kind, ..)| ![kind::DATA, kind::RST_STREAM].contains(kind)));
}

#[test]
fn calls_in_progress_are_answered_after_goaway() {
    let mut state = connected();
    read(&mut state, &headers(1));
    state.send_goaway(Reason::NO_ERROR, "");
    assert!(read(&mut state, &headers(3)).begun.is_empty());
    let frames = sent_frames(&mut state);
    assert!(frames.contains(&(kind::GOAWAY, 0, 0, [1u32, 0].map(u32::to_be_bytes).concat())));
    assert!(frames.contains(&(kind::RST_STREAM, 0, 3, Reason::REFUSED_STREAM.0.to_be_bytes().to_vec())));
    assert!(!state.is_over());
    state.answer(1, [Bytes::new(), Bytes::new()]);
    // The stream is reset, because the client has not ended its request and the server needs no more of it.
    assert_eq!(resets(&mut state), [(1, 0)]);
    assert!(state.is_over());
}

#[test]
fn random_changes_of_the_input_do_not_panic() {
    let good = [
        &PREFACE[..],
        &settings(&[(setting::INITIAL_WINDOW_SIZE, 1000), (setting::MAX_FRAME_SIZE, 20_000)]),
        &headers(1),
        &frame(kind::DATA, END_STREAM, 1, &[1; 50]),
        &frame(kind::HEADERS, 0, 3, &header_block()[..20]),
        &frame(kind::CONTINUATION, END_HEADERS, 3, &header_block()[20..]),
        &frame(kind::DATA, PADDED, 3, &[5; 40]),
        &window_update(0, 70),
        &frame(kind::RST_STREAM, 0, 1, &[0; 4]),
        &frame(kind::PING, 0, 0, &[0; 8]),
    ]
    .concat();
    let mut seed = 1u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let (mut ended, mut continued) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=random(3) {
            // The preface is not changed, because most changes of it would end the connection at once.
            let at = PREFACE.len() + random(bytes.len() - PREFACE.len());
            bytes[at] = random(256) as u8;
        }
        let (mut state, mut events) = (ConnectionState::new(), ReadEvents::default());
        match state.read(&bytes, &mut events) {
            Ok(taken) => {
                assert!(taken <= bytes.len());
                continued += 1;
            }
            Err(violation) => {
                state.send_goaway(violation.reason, violation.message);
                ended += 1;
            }
        }
        for (stream, _) in events.begun {
            state.answer(stream, [Bytes::from(vec![1; 30]), Bytes::from(vec![2; 3000])]);
        }
        sent_frames(&mut state);
        state.remove_all();
    }
    assert!(ended > 1000 && continued > 1000, "{ended} {continued}");
}
