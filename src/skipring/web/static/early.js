// Runs before the first paint, so the other theme does not flash up.
{
  const chosen = localStorage.getItem("skipring-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
