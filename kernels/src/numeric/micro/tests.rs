//! Compares block products with the definition, on every instruction set that the processor has.

use super::*;
use crate::numeric::cpu_cache::FLOATS_PER_LINE;

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 13) as f32 - 6.0).collect()
}

/// A number of rows greater than the rows of two full blocks, on every instruction set.
const MOST_ROWS: usize = 30;

#[test]
fn blocks_of_every_size_match_the_definition() {
    for registers in Registers::all() {
        for rows in 1..MOST_ROWS {
            for width in 1..=registers.columns {
                check(registers, rows, width, rows % 2 == 0);
            }
        }
    }
}

fn check(registers: &Registers, count: usize, width: usize, add: bool) {
    let runs = [(1, 0, 3), (20, 3, 0), (11, 4, 2), (5, 6, 37)].map(|(start, first, len)| StepRun {
        start,
        first,
        len,
    });
    let steps: Vec<(usize, usize)> =
        runs.iter().flat_map(|run| (0..run.len).map(|t| (run.start + t * 2, run.first + t))).collect();
    let rows: Vec<usize> = (0..count).map(|i| (i * 29) % 40).collect();
    let a = numbers(40 + 5 + 2 * 37, 1);
    let right_step = registers.columns + 3;
    let b = numbers(42 * right_step + registers.whole_vectors(width), 2);
    let places: Vec<usize> = (0..count).map(|i| (count - 1 - i) * (width + 1)).collect();
    let before = numbers(count * (width + 1), 3);
    let mut out = before.clone();
    let prefetch = [Prefetch::Nothing, Prefetch::Rows, Prefetch::Memory(&b[1..])][count % 3];
    let left = LeftMatrix { data: &a, rows: &rows, runs: &runs, step: 2, prefetch };
    let mut destination = Destination { data: &mut out, rows: &places, width, add };
    registers.sweep(&left, &RightPanel { data: &b, step: right_step }, &mut destination);
    for (&row, &place) in rows.iter().zip(&places) {
        for j in 0..width {
            let sum: f32 = steps.iter().map(|(left, right)| a[row + left] * b[right * right_step + j]).sum();
            let expected = if add { before[place + j] + sum } else { sum };
            assert_eq!(out[place + j], expected, "{registers:?}, {count} rows, column {j} of {width}");
        }
        assert_eq!(out[place + width], before[place + width], "what is beside a row was written");
    }
}

#[test]
fn all_but_the_last_blocks_are_full() {
    for (len, most, lens) in [
        (1, 6, &[1][..]),
        (6, 6, &[6]),
        (7, 6, &[4, 3]),
        (13, 6, &[6, 4, 3]),
        (15, 6, &[6, 6, 3]),
        (32, 6, &[6, 6, 6, 6, 4, 4]),
        (36, 6, &[6; 6]),
    ] {
        let blocks: Vec<_> = cut_rows(len, most).collect();
        assert_eq!(blocks.iter().map(Range::len).collect::<Vec<_>>(), lens);
        assert!(blocks.windows(2).all(|pair| pair[0].end == pair[1].start), "{blocks:?}");
        assert_eq!((blocks[0].start, blocks[blocks.len() - 1].end), (0, len));
    }
}

#[test]
fn memory_is_prefetched_in_proportion_to_the_rows() {
    let memory = numbers(200, 1);
    let mut queue = PrefetchQueue::new([&memory[..100], &memory[100..]], 20);
    let mut lens = Vec::new();
    while let Prefetch::Memory(part) = queue.next(5) {
        lens.push(part.len());
    }
    // 5 of 20 rows prefetch a quarter of the 200 elements: 50, rounded up to four cache lines.
    assert_eq!(lens, [64, 36, 64, 36]);
}

/// Every cache line of the memory is prefetched, for any length.
#[test]
fn a_sweep_prefetches_all_of_its_memory() {
    let memory = numbers(5000, 1);
    for len in [0, 1, 15, 16, 17, 100, 1000, 4999] {
        for (runs, blocks) in [(&[14, 14, 12][..], 6), (&[400], 1), (&[0, 3], 2)] {
            let runs: Vec<StepRun> = runs.iter().map(|&len| StepRun { start: 0, first: 0, len }).collect();
            let prefetch = Prefetch::Memory(&memory[..len]);
            let left = LeftMatrix { data: &[], rows: &[], runs: &runs, step: 1, prefetch };
            let prefetch::PrefetchCursor { each, pace, .. } = prefetch::PrefetchCursor::new(&left, blocks);
            let times: usize = runs.iter().map(|run| run.len.div_ceil(FLOATS_PER_LINE) * blocks).sum();
            assert!(times * each * pace >= len && pace <= FLOATS_PER_LINE, "{len}: {each} times {pace}");
            assert_eq!(each == 0, len == 0);
        }
    }
}

#[test]
fn panels_are_of_whole_vectors_and_about_equal() {
    for registers in Registers::all() {
        for width in 1..5 * registers.columns {
            let panels: Vec<_> = registers.panels(width).collect();
            assert_eq!(panels.len(), width.div_ceil(registers.columns), "{registers:?}, {width} columns");
            let vectors = |panel: &Range<usize>| panel.len().div_ceil(registers.lanes);
            let (most, least) = (panels.iter().map(vectors).max(), panels.iter().map(vectors).min());
            assert!(most <= least.map(|least| least + 1), "{registers:?}, {width} columns: {panels:?}");
            let ends: Vec<usize> = panels.iter().map(|panel| panel.end).collect();
            let starts: Vec<usize> = panels.iter().map(|panel| panel.start).collect();
            assert_eq!((starts[0], ends.last()), (0, Some(&width)));
            assert_eq!(starts[1..], ends[..ends.len() - 1]);
            assert!(starts.iter().all(|start| start.is_multiple_of(registers.lanes)));
        }
    }
}

/// Computes a product of one row and one column with a single run.
fn sweep_of(run: StepRun) {
    let left = LeftMatrix { data: &[0.0; 4], rows: &[0], runs: &[run], step: 1, prefetch: Prefetch::Nothing };
    let mut destination = Destination { data: &mut [0.0; 1], rows: &[0], width: 1, add: false };
    Registers::get().sweep(&left, &RightPanel { data: &[0.0; 256], step: 64 }, &mut destination);
}

#[test]
#[should_panic(expected = "a left matrix reaches outside its data")]
fn runs_outside_the_left_matrix_are_refused() {
    sweep_of(StepRun { start: 2, first: 0, len: 3 });
}

#[test]
#[should_panic(expected = "a right matrix reaches outside its data")]
fn runs_outside_the_right_matrix_are_refused() {
    sweep_of(StepRun { start: 2, first: 3, len: 2 });
}
