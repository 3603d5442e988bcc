/** A function that has `run` called once with the next frame, however often it is called before. */
export function oncePerFrame(run: () => void): () => void {
  let isDue = false;
  return () => {
    if (isDue) return;
    isDue = true;
    // A hidden tab gets no frames; then the next one that is shown counts for all.
    requestAnimationFrame(() => {
      isDue = false;
      run();
    });
  };
}
